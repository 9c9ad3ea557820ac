"""The report of a study: a summary in plain words, then its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.units import format_bandwidth, format_duration
from paceline.studies.charts.axes import axes_section
from paceline.studies.charts.cost import cost_section
from paceline.studies.charts.curves import at_base, strategies_of
from paceline.studies.charts.gains import gains_section
from paceline.studies.charts.maps import map_sections
from paceline.studies.charts.roofline import roofline_section
from paceline.studies.charts.scaling import scaling_section
from paceline.studies.charts.time import time_section
from paceline.studies.page import Page, TextTable, write_page
from paceline.studies.pictures import write_pictures
from paceline.studies.roofline import RooflineKernel
from paceline.studies.study import Study

_COST = "dollars_per_million_samples"
_CAVEAT = (
    "Step times alone do not decide between strategies: one that exchanges less often may need "
    "more steps to reach the same accuracy."
)


def write_report(
    study: Study,
    path: str | Path,
    *,
    roofline: Sequence[RooflineKernel] = (),
    images: str | Path | None = None,
) -> None:
    """Write a study's report as one HTML file that needs no network.

    Args:
        study: What was found.
        path: The file to write.
        roofline: The kernels of the step, for its Roofline chart; see ``roofline_kernels``.
        images: A folder for the charts as SVG files; they are drawn by chromium.
    """
    write_page(report_page(study, roofline=roofline), Path(path))
    if images is not None:
        write_pictures(Path(path), Path(images))


def report_page(study: Study, *, roofline: Sequence[RooflineKernel] = ()) -> Page:
    """The report as a page: what it says and which charts it has.

    Args:
        study: What was found.
        roofline: The kernels of the step, for its Roofline chart.
    """
    device = study.cluster.node_kinds[0].device
    sections = (
        scaling_section(study),
        time_section(study),
        axes_section(study),
        *map_sections(study),
        gains_section(study),
        roofline_section(roofline, device),
        cost_section(study),
    )
    rows = [at_base(study, strategy) for strategy in strategies_of(study)]
    return Page(
        title=f"{study.model} on {study.cluster.name}: how training scales",
        summary=_summary(study, rows),
        overview=_overview(rows),
        findings=study.crossings,
        warnings=study.warnings,
        sections=[section for section in sections if section is not None],
    )


def _summary(study: Study, rows: Sequence[dict[str, Any]]) -> list[str]:
    (kind, *_) = study.cluster.node_kinds
    fastest = min(rows, key=lambda row: float(row["step_s"]))
    nodes = "1 node" if fastest["nodes"] == 1 else f"{fastest['nodes']:,} nodes"
    link = format_bandwidth(fastest["link_bytes_per_s"], bits=True)
    setting = (
        f"The study starts from {study.model} on {study.cluster.name}: {fastest['workers']:,} "
        f"workers, each with one {kind.device.name}, in {nodes}, {link} between nodes, and a batch "
        f"of {fastest['batch']:,} per worker."
    )
    result = (
        f"There, {fastest['strategy']} has the shortest step: {_with_range(fastest)}, "
        f"{fastest['throughput_per_s']:,.0f} samples/s, {fastest['efficiency']:.0%} of perfect "
        f"scaling. It is limited by {fastest['bottleneck']}."
    )
    misfit = "" if fastest["fits"] else "It does not fit into the device's memory."
    return [text for text in (setting, result, misfit, _CAVEAT if len(rows) > 1 else "") if text]


def _overview(rows: Sequence[dict[str, Any]]) -> TextTable:
    has_prices = all(math.isfinite(row[_COST]) for row in rows)
    return TextTable(
        header=("strategy", "time per step", "samples/s", "efficiency", "limited by")
        + (("$ per million samples",) if has_prices else ()),
        rows=[
            (
                row["strategy"],
                _with_range(row),
                f"{row['throughput_per_s']:,.0f}",
                f"{row['efficiency']:.0%}",
                row["bottleneck"],
                *((f"{row[_COST]:.3g}",) if has_prices else ()),
            )
            for row in sorted(rows, key=lambda row: float(row["step_s"]))
        ],
    )


def _with_range(row: dict[str, Any]) -> str:
    low, high = format_duration(_digits(row["low_s"])), format_duration(_digits(row["high_s"]))
    return f"{format_duration(_digits(row['step_s']))} ({low} to {high})"


def _digits(seconds: float) -> float:
    return float(f"{seconds:.3g}")
