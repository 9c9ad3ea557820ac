"""The report as a file: what it says, what it holds, and that nothing in it can do harm."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.cluster import load_cluster
from paceline.cluster.devices import load_device
from paceline.kernels.model import KernelModel
from paceline.steps import Step, capture_step
from paceline.studies.charts.curves import at_base
from paceline.studies.figures import doubling_ticks, label_axis, round_ticks
from paceline.studies.page import Page, Section, page_html, script_json
from paceline.studies.report import report_page, write_report
from paceline.studies.roofline import roofline_kernels
from synthetic_study import synthetic_roofline, synthetic_study

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
VOID = {"meta", "br", "img", "link", "input"}


class Markup(HTMLParser):
    """Elements, what they would load, and the text of each script; tags must be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.opened:
            return
        kind = {"script": self.scripts, "style": self.styles}.get(self.opened[-1], self.texts)
        kind.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(synthetic_study(), path, roofline=synthetic_roofline())
    return path.read_text("utf-8")


def parsed(html: str) -> Markup:
    markup = Markup()
    markup.feed(html)
    markup.close()
    assert markup.opened == []
    return markup


def embedded(markup: Markup) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(markup.scripts[0])
    return found


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def section_named(page: Page, heading: str) -> Section:
    (found,) = [section for section in page.sections if section.heading == heading]
    return found


def test_nothing_is_loaded_from_elsewhere(report: str) -> None:
    markup = parsed(report)
    assert markup.loads == []
    assert not re.search(r"url\(|@import", "".join(markup.styles))
    assert "default-src 'none'" in report
    assert "plotly.js v" in markup.scripts[1]


def test_summary_comes_first_and_charts_in_their_order(report: str) -> None:
    texts = "\n".join(parsed(report).texts)
    expected = [
        "resnet50 on aws-p4d: how training scales",
        "32 workers, each with one a100-40gb, in 4 nodes, 400 Gbit/s between nodes",
        "daso has the shortest step: 106 ms (98.6 ms to 113 ms), 9,660 samples/s, 94% of perfect",
        "beyond 96 workers the links limit",
        "kernels that nobody measured",
        "How training scales",
        "Where the time goes",
        "Each axis alone",
        "What limits a step: workers and bandwidth between nodes",
        "What limits a step: workers and batch per worker",
        "What more of each resource brings",
        "How well the kernels use the device",
        "What it costs",
    ]
    places = [texts.index(text) for text in expected[:5]]
    places += [texts.index(f"\n{text}") for text in expected[5:]]
    assert places == sorted(places)


def test_each_section_has_its_numbers_as_csv(report: str) -> None:
    study = synthetic_study()
    sections = {section["name"]: rows_of(section["csv"]) for section in embedded(parsed(report))}
    along = study.table.where(sweep="workers")
    scaling = sections["how-training-scales"]
    assert [float(row["throughput_per_s"]) for row in scaling] == along["throughput_per_s"].tolist()
    assert [row["scaling"] for row in scaling] == along["scaling"].tolist()
    parts = sections["where-the-time-goes"]
    exposed = along["exposed_communication_s"].tolist()
    assert [float(row["exposed_communication_s"]) for row in parts] == exposed
    axes = sections["each-axis-alone"]
    assert {row["sweep"] for row in axes} == set(study.table["sweep"].tolist()) - {
        "workers*link",
        "workers*batch",
        "base",
    }
    cells = study.table.where(sweep="workers*link")
    limits = sections["what-limits-a-step-workers-and-bandwidth-between-nodes"]
    assert [row["bottleneck"] for row in limits] == cells["bottleneck"].tolist()
    assert [float(row["link_bytes_per_s"]) for row in limits] == cells["link_bytes_per_s"].tolist()
    gains = sections["what-more-of-each-resource-brings"]
    weak = along.where(scaling="weak")
    gain = weak["gain_link_bandwidth"].tolist()
    assert [float(row["gain_link_bandwidth"]) for row in gains] == gain
    kernels = sections["how-well-the-kernels-use-the-device"]
    assert [float(row["flop"]) for row in kernels] == [each.flop for each in synthetic_roofline()]
    assert sum(float(row["share_of_time"]) for row in kernels) == pytest.approx(1)
    cost = along["dollars_per_million_samples"].tolist()
    assert [float(row["dollars_per_million_samples"]) for row in sections["what-it-costs"]] == cost
    assert len(sections) == 8


def test_hostile_names_stay_text() -> None:
    study = synthetic_study(HOSTILE, strategies=("sync", HOSTILE))
    kernels = [*synthetic_roofline()]
    markup = parsed(page_html(report_page(study, roofline=kernels)))
    assert markup.tags.count("script") == 3
    assert "img" not in markup.tags
    assert f"{HOSTILE} on aws-p4d: how training scales" in markup.texts
    sections = embedded(markup)
    assert {row["strategy"] for row in rows_of(sections[0]["csv"])} == {"sync", HOSTILE}
    names = {
        trace.get("name", "")
        for section in sections
        for view in section["views"]
        for figure in view
        for trace in figure["data"]
    }
    assert not any("<" in name for name in names)


def test_json_in_a_script_cannot_end_it() -> None:
    value = {"a": ["</script>", "<!--", "&", np.float64(2.5), np.nan], "b": np.array([1, 2])}
    text = script_json(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": ["</script>", "<!--", "&", 2.5, None], "b": [1, 2]}


def test_without_prices_there_is_no_cost() -> None:
    cluster = load_cluster("aws-p4d").with_nodes(2)
    free = cluster.replace(node_kinds=(cluster.node_kinds[0].replace(price_per_hour=None),))
    page = report_page(synthetic_study(cluster=free))
    assert "What it costs" not in [section.heading for section in page.sections]
    assert page.overview is not None
    assert "$ per million samples" not in page.overview.header


def test_without_kernels_there_is_no_roofline() -> None:
    headings = [section.heading for section in report_page(synthetic_study()).sections]
    assert "How well the kernels use the device" not in headings


def test_a_study_along_one_axis_has_a_report(tmp_path: Path) -> None:
    study = synthetic_study(only="link")
    page = report_page(study)
    headings = [section.heading for section in page.sections]
    assert headings == ["Each axis alone", "What more of each resource brings"]
    write_report(study, tmp_path / "report.html")


def test_images_need_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="chromium, which is not installed"):
        write_report(synthetic_study(only="link"), tmp_path / "a.html", images=tmp_path / "images")


def test_bands_enclose_their_curves() -> None:
    section = section_named(report_page(synthetic_study()), "How training scales")
    rows = synthetic_study().table.where(sweep="workers", scaling="weak", strategy="sync")
    panels = next(iter(section.views.values()))
    for panel, column in zip(panels, ("throughput_per_s", "efficiency"), strict=True):
        guide, band, curve, *_ = panel.figure["data"]
        assert curve["y"].tolist() == rows[column].tolist()
        low, high = band["y"][: len(rows)], band["y"][len(rows) :][::-1]
        assert np.all(low < curve["y"]) and np.all(curve["y"] < high)
        perfect = rows["workers"] * 320 if column == "throughput_per_s" else np.ones(len(rows))
        assert guide["y"] == pytest.approx(perfect)  # 32 samples in 0.1 s


def test_parts_of_the_time_add_up_to_the_step() -> None:
    section = section_named(report_page(synthetic_study()), "Where the time goes")
    compute, host, exposed = section.views["sync"][0].figure["data"]
    rows = synthetic_study().table.where(sweep="workers", scaling="weak", strategy="sync")
    assert compute["y"] + host["y"] + exposed["y"] == pytest.approx(rows["step_s"])


def test_a_map_shows_what_limits_each_cell() -> None:
    page = report_page(synthetic_study())
    section = section_named(page, "What limits a step: workers and bandwidth between nodes")
    cells = section.views["sync"][0].figure["data"][0]
    rows = synthetic_study().table.where(sweep="workers*link", strategy="sync")
    for row in list(rows.rows())[::97]:
        across = cells["x"].tolist().index(row["workers"])
        up = cells["y"].tolist().index(8 * row["link_bytes_per_s"])
        assert list(section.legend)[int(cells["z"][up, across])] == row["bottleneck"]
        assert cells["customdata"][up, across, 0] == pytest.approx(row["step_s"], rel=1e-3)
    assert {"arithmetic", "link bandwidth"} <= set(rows["bottleneck"].tolist())


def test_each_number_of_a_map_has_the_colour_of_the_legend() -> None:
    section = report_page(synthetic_study()).sections[3]
    cells = section.views["sync"][0].figure["data"][0]
    edges = cells["colorscale"]
    steps = [(low, high, colour) for (low, colour), (high, _) in pairwise(edges) if low < high]
    for place, style in enumerate(section.legend.values()):
        at = place / (len(section.legend) - 1)
        assert [colour for low, high, colour in steps if low <= at <= high] == [style.colour]
        assert [edge[1] for edge in edges].count(style.colour) == 2


def test_the_base_is_found() -> None:
    row = at_base(synthetic_study(), "local-sgd")
    assert (row["strategy"], row["workers"], row["batch"]) == ("local-sgd", 32, 32)
    assert row["link_bytes_per_s"] == pytest.approx(50e9)
    assert row["arithmetic"] == pytest.approx(1)


def test_equal_kernels_are_one_mark() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    step = Step(
        model=model, inputs=torch.zeros(8, 64), targets=torch.zeros(8, 64), loss=nn.MSELoss()
    )
    capture = capture_step(step)
    kernel_model = KernelModel(load_device("a100-40gb"))
    kernels = roofline_kernels(capture, kernel_model)
    (product,) = [kernel for kernel in kernels if kernel.title.startswith("addmm")]
    assert (product.count, product.family) == (2, "matmul")
    assert product.flop == 2 * 8 * 64 * 64
    assert product.flops <= min(product.peak_flops, product.intensity * 1.6e12)
    total_s = sum(each.seconds for each in kernel_model.estimate(capture.kernels()))
    assert sum(kernel.total_s for kernel in kernels) == pytest.approx(total_s)
    assert [k.total_s for k in kernels] == sorted((k.total_s for k in kernels), reverse=True)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 1000.0, [1, 10, 100, 1000]),
        (0.9, 6.0, [1, 2, 5]),
        (70.0, 190.0, [70, 80, 90, 100, 150]),
        (1.0, 1e12, [1, 1e3, 1e6, 1e9, 1e12]),
    ],
)
def test_ticks_are_few_and_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_ticks_of_workers_are_powers_of_two() -> None:
    assert doubling_ticks([1, 3, 1024]) == [1, 4, 16, 64, 256, 1024]
    assert doubling_ticks([5, 6]) == [5, 6]


def test_long_names_have_several_lines() -> None:
    long = "sync, batch 64 per worker, 1 node of <b>aws-p3-16xlarge</b> (8 workers)"
    axis = label_axis(["sync", long])
    assert axis["tickvals"] == axis["categoryarray"]  # what the bars are called
    first, last = axis["ticktext"]
    assert last == "sync" and first.count("<br>") == 3
    assert "<b>" not in first
    assert max(len(line) for line in unescape(first.replace("<br>", "\n")).split("\n")) <= 26
