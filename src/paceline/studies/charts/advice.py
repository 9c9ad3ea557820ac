"""The charts of an advice: what each way brings over plain DDP, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.studies.figures import csv_text, figure, label_axis, linear_axis, mark_at
from paceline.studies.page import Figure, Panel, Section, chart_text
from paceline.studies.palette import BLUE

_BAR_PX = 44
_COST = "dollars_per_million_samples"


def changes_section(
    ways: Sequence[Mapping[str, Any]], *, heading: str, how_to_read: str
) -> Section | None:
    """Throughput over plain DDP's, with its range; None where there is nothing to compare."""
    if not ways or (len(ways) == 1 and ways[0]["over_plain"] == 1):
        return None
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [way["over_plain"] for way in ways],
        "y": _labels(ways),
        "marker": {"color": BLUE, "size": 11},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [way["over_plain_range"][1] - way["over_plain"] for way in ways],
            "arrayminus": [way["over_plain"] - way["over_plain_range"][0] for way in ways],
            "color": BLUE,
            "thickness": 2,
        },
        "showlegend": False,
        "hovertemplate": "%{x:.3g} times plain DDP<extra>%{y}</extra>",
    }
    chart = figure(
        [dots],
        height=100 + _BAR_PX * len(ways),
        shapes=[mark_at(1.0)],
        xaxis=linear_axis("samples/s over plain DDP's"),
        yaxis=label_axis([str(way["what"]) for way in ways]),
    )
    names = ("step_s", "throughput_per_s", "scaling_efficiency", "over_plain")
    return Section(
        heading=heading,
        how_to_read=how_to_read,
        views={"": (Panel(title="Throughput over plain DDP", figure=chart),)},
        csv=csv_text(
            ("what", *names, "low", "high"),
            (
                (way["what"], *(way[name] for name in names), *way["over_plain_range"])
                for way in ways
            ),
        ),
        legend={},
    )


def cost_section(ways: Sequence[Mapping[str, Any]]) -> Section | None:
    """US dollars per million samples; None where prices are not known."""
    priced = [way for way in ways if way[_COST] is not None]
    if not priced:
        return None
    return Section(
        heading="What it costs",
        how_to_read="US dollars per million samples, at the cluster's price per hour; shorter is "
        "cheaper.",
        views={"": (Panel(title="US dollars per million samples", figure=_bars(priced)),)},
        csv=csv_text(("what", _COST), ((way["what"], way[_COST]) for way in priced)),
        legend={},
    )


def _bars(ways: Sequence[Mapping[str, Any]]) -> Figure:
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [way[_COST] for way in ways],
        "y": _labels(ways),
        "marker": {"color": BLUE},
        "texttemplate": "$%{x:.3g}",
        "showlegend": False,
        "hovertemplate": "$%{x:.4g}<extra>%{y}</extra>",
    }
    return figure(
        [bars],
        height=100 + _BAR_PX * len(ways),
        xaxis=linear_axis("US dollars", tickprefix="$"),
        yaxis=label_axis([str(way["what"]) for way in ways]),
    )


def _labels(ways: Sequence[Mapping[str, Any]]) -> list[str]:
    return [chart_text(str(way["what"])) for way in ways]
