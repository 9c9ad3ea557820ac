"""The report as a reader sees it, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from browser import Opened, needs_browser, opened
from paceline.studies.page import write_page
from paceline.studies.pictures import write_pictures
from paceline.studies.report import report_page, write_report
from synthetic_study import synthetic_roofline, synthetic_study

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as BrowserPage

pytestmark = needs_browser

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>"
PHONE_WIDTH = 390
SVG = "{http://www.w3.org/2000/svg}"

# How much each chart of the views in sight shows: marks of any kind, and its size.
DRAWN = """() => [...document.querySelectorAll(".view:not([hidden]) .plot")].map((plot) => ({
  marks: plot.querySelectorAll(".trace path, .hm image, .bars path").length,
  width: plot.querySelector(".main-svg")?.getBoundingClientRect().width ?? 0,
  ticks: plot.querySelectorAll(".xtick text, .ytick text").length,
}))"""
INK = """() => [
  getComputedStyle(document.querySelector(".xtick text")).fill,
  getComputedStyle(document.body).backgroundColor,
]"""
LIGHT = ["rgb(28, 32, 36)", "rgb(255, 255, 255)"]
DARK = ["rgb(230, 233, 236)", "rgb(20, 23, 26)"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    study = synthetic_study(HOSTILE, strategies=("sync", HOSTILE))
    write_report(study, path, roofline=synthetic_roofline())
    return path.as_uri()


@pytest.fixture(scope="module")
def desktop(browser: Browser, url: str) -> Iterator[Opened]:
    with opened(browser, url) as found:
        yield found


def check_drawn(found: Opened) -> int:
    charts = found.page.evaluate(DRAWN)
    for chart in charts:
        assert chart["marks"] > 0
        assert chart["ticks"] > 0
        assert chart["width"] > 200
    return len(charts)


def test_every_chart_of_every_view_draws(desktop: Opened, url: str) -> None:
    first = check_drawn(desktop)
    assert first == 15
    desktop.page.evaluate(
        "document.querySelectorAll('.switch button:last-child').forEach((each) => each.click())"
    )
    assert check_drawn(desktop) == first
    assert desktop.page.locator(".view:not([hidden])").count() == 8
    desktop.page.evaluate(
        "document.querySelectorAll('.switch button:first-child').forEach((each) => each.click())"
    )
    assert desktop.problems == []
    assert desktop.requests == [url]


def test_a_hostile_name_does_nothing(desktop: Opened) -> None:
    page = desktop.page
    assert HOSTILE in (page.locator("h1").text_content() or "")
    # Its label of the mouse, too, shows the name as it is.
    chart = page.locator("#how-training-scales .plot").nth(1)
    chart.scroll_into_view_if_needed()
    chart.evaluate("(plot) => Plotly.Fx.hover(plot, [{ curveNumber: 4, pointNumber: 12 }])")
    assert "</script>" in (chart.locator(".hoverlayer").text_content() or "")
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0


def test_the_legend_hides_a_strategy_in_all_charts_of_its_section(desktop: Opened) -> None:
    section = desktop.page.locator("#how-training-scales")
    button = section.locator(".legend button").nth(1)
    lines = section.locator(".view:not([hidden]) .scatterlayer .trace .js-line")
    before = lines.count()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == before - 4  # a curve and its band, in both charts
    button.click()
    assert lines.count() == before


def test_the_data_is_saved_as_csv(desktop: Opened) -> None:
    with desktop.page.expect_download() as download:
        desktop.page.locator("#what-it-costs .csv").click()
    assert download.value.suggested_filename == "what-it-costs.csv"
    page = report_page(synthetic_study(HOSTILE, strategies=("sync", HOSTILE)))
    assert Path(download.value.path()).read_text("utf-8") == page.sections[-1].csv


def wait_for_ink(page: BrowserPage, expected: list[str]) -> None:
    page.wait_for_function(f"(wanted) => String(({INK})()) === wanted", arg=",".join(expected))


@pytest.fixture
def dark(desktop: Opened) -> Iterator[BrowserPage]:
    """The page of a reader who prefers dark; light again afterwards."""
    page = desktop.page
    wait_for_ink(page, LIGHT)
    page.emulate_media(color_scheme="dark")
    wait_for_ink(page, DARK)
    yield page
    page.evaluate("delete document.documentElement.dataset.theme")
    page.emulate_media(media="screen", color_scheme="light")
    wait_for_ink(page, LIGHT)


def test_the_button_changes_the_theme_of_page_and_charts(dark: BrowserPage) -> None:
    page = dark
    page.locator("#theme").click()
    wait_for_ink(page, LIGHT)
    page.locator("#theme").click()
    wait_for_ink(page, DARK)


def test_a_view_shown_later_has_the_theme_too(dark: BrowserPage) -> None:
    section = dark.locator("#how-training-scales")
    for place in (1, 0):
        section.locator(".switch button").nth(place).click()
        label = section.locator(".view:not([hidden]) .xtick text").first
        assert label.evaluate("(text) => getComputedStyle(text).fill") == DARK[0]


def test_paper_is_light_and_narrow(dark: BrowserPage, desktop: Opened) -> None:
    page = dark
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_for_ink(page, LIGHT)
    assert max(chart["width"] for chart in page.evaluate(DRAWN)) <= 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    wait_for_ink(page, DARK)
    assert max(chart["width"] for chart in page.evaluate(DRAWN)) > 680
    assert desktop.problems == []


def test_pictures_of_all_views_are_written(tmp_path: Path) -> None:
    study = synthetic_study("<b>bold</b>", only="workers")
    page = report_page(study)
    scaling = page.sections[0]
    write_page(replace(page, sections=[scaling]), tmp_path / "page.html")
    paths = write_pictures(tmp_path / "page.html", tmp_path / "images")
    names = [f"how-training-scales-{view}-{panel}.svg" for view in (1, 2) for panel in (1, 2)]
    assert [path.name for path in paths] == names
    for path in paths:
        picture = ElementTree.parse(path)
        texts = {"".join(each.itertext()) for each in picture.iter(f"{SVG}text")}
        assert {"sync", "local-sgd", "daso", "workers"} <= texts
        assert any(text.startswith("How training scales (") for text in texts)


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, url: str) -> None:
    with opened(browser, url, width=PHONE_WIDTH, height=844) as phone:
        assert phone.page.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH
        assert check_drawn(phone) == 15
        widest = max(chart["width"] for chart in phone.page.evaluate(DRAWN))
        assert widest <= PHONE_WIDTH
        assert phone.problems == []
