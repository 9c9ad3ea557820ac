"""Reports of all kinds and the explorer, in a real browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import PATIENCE_MS, Opened, needs_browser, opened
from paceline.steps import zoo_step
from paceline.studies.explorer import Explorer
from paceline.studies.explorer.server import ExplorerServer
from paceline.studies.page import Page, write_page
from paceline.studies.pictures import write_pictures
from synthetic_reports import pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as BrowserPage

pytestmark = needs_browser

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>"
PHONE_WIDTH = 390
MARKS = """() => [...document.querySelectorAll(
  ".view:not([hidden]) .plot, .results .plot")].map((plot) => ({
  marks: plot.querySelectorAll(".trace path, .bars path, .point path").length,
  width: plot.querySelector(".main-svg")?.getBoundingClientRect().width ?? 0,
  ticks: plot.querySelectorAll(".xtick text").length,
}))"""


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The sections of all kinds of reports on one page, which is quicker to load."""
    found = pages(tmp_path_factory.mktemp("traces"), name=HOSTILE)
    return replace(found[0], sections=[section for page in found for section in page.sections])


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    step = replace(zoo_step("mlp", batch=32), name=HOSTILE)
    explorer = Explorer(step, cluster="lab-2x2", strategies=("sync", "local-sgd"), workers="1:64")
    explorer.start()
    with ExplorerServer(explorer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening
        listening.shutdown()
    explorer.close()


def check_drawn(found: Opened) -> int:
    charts = found.page.evaluate(MARKS)
    for chart in charts:
        assert chart["marks"] > 0 and chart["ticks"] > 0 and chart["width"] > 200
    return len(charts)


def wait_until(page: BrowserPage, expression: str) -> None:
    """Ask from outside: the page's policy forbids evaluating text inside it."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def check_harmless(found: Opened) -> None:
    assert HOSTILE in (found.page.locator("h1").text_content() or "")
    assert found.page.evaluate("window.hit") is None
    assert found.page.locator("img").count() == 0
    assert found.problems == []


def test_every_chart_of_every_report_draws(
    browser: Browser, combined: Page, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write_page(combined, path)
    num_panels = sum(len(next(iter(section.views.values()))) for section in combined.sections)
    for width in (1280, PHONE_WIDTH):
        with opened(browser, path.as_uri(), width=width) as found:
            assert check_drawn(found) == num_panels
            check_harmless(found)
            assert found.page.evaluate("document.documentElement.scrollWidth") == width
            assert found.requests == [path.as_uri()]


def test_a_chart_as_png(combined: Page, tmp_path: Path) -> None:
    (section, *_) = [each for each in combined.sections if each.heading == "Timeline of a step"]
    write_page(replace(combined, sections=[section]), tmp_path / "page.html")
    first, *_ = write_pictures(tmp_path / "page.html", tmp_path / "images", "png")
    assert first.name == "timeline-of-a-step-1-1.png"
    assert first.read_bytes().startswith(b"\x89PNG") and first.stat().st_size > 10_000


def test_sliders_move_the_numbers_and_the_curves(browser: Browser, server: ExplorerServer) -> None:
    with opened(browser, server.url) as found:
        page = found.page
        curve = "() => document.getElementById('throughput').data.at(-1).y.at(-1)"
        number = page.locator("#numbers dd").first
        wait_until(page, "document.querySelectorAll('#gains .bars path').length > 0")
        # The second strategy is prepared while the page is open.
        wait_until(page, "document.getElementById('throughput').data.length === 5")
        assert check_drawn(found) == 4
        for name, key in (("workers", "End"), ("link", "End"), ("batch", "Home")):
            text, height = number.text_content(), page.evaluate(curve)
            slider = page.locator(f"input[name={name}]")
            slider.focus()
            slider.press(key)
            end = time.monotonic() + PATIENCE_MS / 1000
            while number.text_content() == text and time.monotonic() < end:
                page.wait_for_timeout(50)
            assert number.text_content() != text
            if name != "workers":
                assert page.evaluate(curve) != height
        assert "to" in (page.locator("#numbers small").first.text_content() or "")
        assert "when tested" in (page.locator("#tested").text_content() or "")
        page.locator(".switch button").nth(1).click()
        wait_until(page, "document.querySelector('#sentences').textContent.startsWith('local-sgd')")
        page.locator("#reset").click()
        page.locator("select[name=device]").select_option("h200")
        wait_until(
            page,
            "document.querySelector('#tested').textContent.includes('h200, which was measured')",
        )
        check_harmless(found)
        own = server.url
        assert all(url.startswith((own, "data:")) for url in found.requests)


def test_the_explorer_on_a_phone_in_the_dark(browser: Browser, server: ExplorerServer) -> None:
    with opened(browser, server.url, width=PHONE_WIDTH, is_dark=True) as found:
        wait_until(found.page, "document.querySelectorAll('#gains .bars path').length > 0")
        assert found.page.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH
        assert check_drawn(found) == 4
        ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
        assert found.page.evaluate(ink) == "rgb(230, 233, 236)"
        assert found.problems == []
