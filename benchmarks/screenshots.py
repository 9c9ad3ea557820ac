"""Takes the pictures of reports and of the explorer that the documentation shows.

python benchmarks/screenshots.py [NAME ...]

Needs playwright, Debian's chromium and some minutes. The picture of two traces laid over each other
needs a measured one, and is left as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
_STUDY = (
    *("study", "resnet50", "--cluster", "dgx-h200", "--precision", "bf16"),
    *("--workers", "1:4096", "--strategy", "sync,local-sgd,daso"),
)
_PREDICT = ("predict", "small-cnn", "--cluster", "lab-2x2", "--compare")
_MOVE = """(slider, place) => {
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""
_EXPLORE = ("explore", "vgg16", "--cluster", "ethernet-10g", "--workers", "1:512")


def paceline(*arguments: str) -> None:
    """Run a command to its end."""
    subprocess.run([sys.executable, "-m", "paceline", *arguments], check=True)


@contextmanager
def exploring() -> Iterator[str]:
    """The address of a running explorer."""
    command = [sys.executable, "-m", "paceline", *_EXPLORE, "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def drawn(page: Page, url: str) -> None:
    """Open a page and wait until it has charts."""
    page.goto(url)
    page.wait_for_selector(".main-svg")
    page.wait_for_timeout(2000)


def section(page: Page, name: str, path: Path) -> None:
    """One section of a report."""
    page.locator(f"section#{name}").screenshot(path=path)


def study(page: Page) -> None:
    """The top of a study's report, and its map over workers and batch."""
    with tempfile.TemporaryDirectory() as folder:
        paceline(*_STUDY, "--out", folder)
        page.set_viewport_size({"width": 1100, "height": 1760})
        drawn(page, f"file://{folder}/report.html")
        page.screenshot(path=ASSETS / "study-report.png")
        name = "what-limits-a-step-workers-and-batch-per-worker"
        section(page, name, ASSETS / "study-map.png")


def predict(page: Page) -> None:
    """The timeline of DASO in a prediction's report."""
    with tempfile.TemporaryDirectory() as folder:
        paceline(*_PREDICT, "--out", folder)
        page.set_viewport_size({"width": 1100, "height": 900})
        drawn(page, f"file://{folder}/report.html")
        timeline = page.locator("section#timeline-of-a-step")
        timeline.get_by_role("button", name="daso", exact=True).click()
        page.wait_for_timeout(500)
        timeline.screenshot(path=ASSETS / "predict-report.png")


def explore(page: Page) -> None:
    """The explorer after two sliders were moved."""
    with exploring() as url:
        page.set_viewport_size({"width": 1280, "height": 1000})
        drawn(page, url)
        page.get_by_role("button", name="daso", exact=True).first.click()
        for name, place in (("workers", 12), ("link", 10)):
            page.locator(f"input[name={name}]").evaluate(_MOVE, place)
        # Until all strategies are there, and what is exact has replaced estimates.
        page.wait_for_function("document.getElementById('status').textContent === ''")
        page.wait_for_timeout(2000)
        page.screenshot(path=ASSETS / "explore.png")


PICTURES: dict[str, Callable[[Any], None]] = {
    "study": study,
    "predict": predict,
    "explore": explore,
}


def main(names: list[str]) -> None:
    """Take all pictures, or some."""
    with sync_playwright() as playwright:
        options = ["--no-sandbox"]  # else root may not start it
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        for name in names or PICTURES:
            page = browser.new_page(color_scheme="light")
            PICTURES[name](page)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
