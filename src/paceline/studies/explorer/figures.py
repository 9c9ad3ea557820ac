"""The explorer's charts: throughput, efficiency, where the time goes, what more would bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.studies.figures import (
    doubling_ticks,
    figure,
    guide,
    line,
    linear_axis,
    log_axis,
    mark_at,
    short,
)
from paceline.studies.page import Figure
from paceline.studies.palette import RESOURCE_STYLES, TIME_STYLES, Style, styles_of
from paceline.studies.points import Array

_PARTS = ("compute", "communication and waiting")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One strategy over the numbers of workers."""

    workers: Array
    step_s: Array
    low_s: Array
    high_s: Array
    exposed_s: Array
    throughput_per_s: Array
    efficiency: Array
    efficiency_low: Array
    efficiency_high: Array
    is_exact: bool


def figures_of(
    curves: Mapping[str, Curve], chosen: str, worker: int, gains: Mapping[str, float] | None
) -> dict[str, Figure]:
    """The page's figures by the place they go to.

    Args:
        curves: Strategies that are known.
        chosen: The strategy in the switch.
        worker: The place of the slider of workers.
        gains: What a tenth more of each resource saves, once that is known.
    """
    if not curves:
        return {}
    styles = styles_of(list(curves))
    found = {
        "throughput": _throughput(curves, styles, worker),
        "efficiency": _efficiency(curves, styles, worker),
    }
    if chosen in curves:
        found["time"] = _time(curves[chosen], worker)
    if gains is not None:
        found["gains"] = _gains(gains)
    return found


def _axes(curves: Mapping[str, Curve], worker: int) -> dict[str, Any]:
    workers = next(iter(curves.values())).workers
    ticks = doubling_ticks([float(value) for value in workers])
    return {
        "xaxis": log_axis("workers", workers, ticks=ticks),
        "shapes": [mark_at(float(workers[worker]))],
    }


def _throughput(curves: Mapping[str, Curve], styles: Mapping[str, Style], worker: int) -> Figure:
    traces: list[dict[str, Any]] = []
    reached = []
    for name, curve in curves.items():
        samples = curve.throughput_per_s * curve.step_s
        band = (samples / curve.high_s, samples / np.maximum(curve.low_s, curve.step_s / 10))
        hover = "%{x:,} workers<br>%{y:,.0f} samples/s"
        traces += line(name, styles[name], curve.workers, curve.throughput_per_s, hover, band=band)
        reached += [*band]
    perfect = curve.throughput_per_s / np.maximum(curve.efficiency, 1e-12)
    traces.insert(0, guide(curve.workers, perfect))
    return figure(
        traces,
        yaxis=log_axis("samples/s", np.concatenate([*reached, perfect]), text=short),
        **_axes(curves, worker),
    )


def _efficiency(curves: Mapping[str, Curve], styles: Mapping[str, Style], worker: int) -> Figure:
    traces: list[dict[str, Any]] = []
    for name, curve in curves.items():
        hover = "%{x:,} workers<br>efficiency %{y:.1%}"
        band = (curve.efficiency_low, curve.efficiency_high)
        traces += line(name, styles[name], curve.workers, curve.efficiency, hover, band=band)
    axis = linear_axis("of perfect scaling", tickformat=".0%", range=[0, 1.05])
    return figure(traces, yaxis=axis, **_axes(curves, worker))


def _time(curve: Curve, worker: int) -> Figure:
    seconds = (curve.step_s - curve.exposed_s, curve.exposed_s)
    traces = [
        {
            **line(name, TIME_STYLES[name], curve.workers, own, "%{y:.3s}s")[0],
            "mode": "lines",
            "stackgroup": "step",
            "fillcolor": TIME_STYLES[name].faint(0.6),
        }
        for name, own in zip(_PARTS, seconds, strict=True)
    ]
    return figure(
        traces,
        hovermode="x unified",
        yaxis=linear_axis("time per step", tickformat="~s", ticksuffix="s"),
        **_axes({"": curve}, worker),
    )


def _gains(gains: Mapping[str, float]) -> Figure:
    names = list(gains)[::-1]  # plotly stacks bars from the bottom
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [max(gains[name], 0.0) for name in names],
        "y": names,
        "marker": {"color": [RESOURCE_STYLES[name].colour for name in names]},
        "hovertemplate": "%{x:.2%} shorter<extra>%{y}</extra>",
    }
    return figure([bars], xaxis=linear_axis("shorter step", tickformat=".1%"), yaxis={"title": {}})
