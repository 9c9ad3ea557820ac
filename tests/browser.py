"""Debian's chromium through playwright, for pages that are tested as a reader sees them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 120_000  # a busy machine takes long to draw, and that is no failure
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: run `make browser` as root"
)


@dataclass
class Opened:
    """A page, and everything that went wrong on it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A headless chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root chromium refuses its sandbox; the pages are our own.
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, *, width: int = 1280, height: int = 900, is_dark: bool = False
) -> Iterator[Opened]:
    """The page at ``url`` in a window of its own."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if is_dark else "light",
        has_touch=width < 600,
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    found = Opened(page)
    page.on("console", found.note)
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(url, wait_until="load")
    yield found
    context.close()
