"""Pieces of figures as plotly takes them: axes with their ticks, lines with their bands."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from paceline.studies.page import Figure, chart_text
from paceline.studies.palette import GREY, Style
from paceline.studies.points import Array

_MOST_TICKS = 6
_LABEL_LETTERS = 24  # of a line; on a phone more would leave no room for the chart
# Mantissas of ticks, from many to few per decade.
_MANTISSAS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0), (1.0, 2.0, 5.0), (1.0,))


def figure(traces: Sequence[dict[str, Any]], **layout: Any) -> Figure:
    """A figure of these traces; what is not said about its layout, the page decides."""
    return {"data": list(traces), "layout": layout}


def line(
    name: str,
    style: Style,
    x: Array,
    y: Array,
    hover: str,
    *,
    band: tuple[Array, Array] | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """A line with markers; with ``band``, the range between two lines behind it."""
    own = {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 60 else "lines",
        "name": chart_text(name),
        "legendgroup": chart_text(name),
        "x": x,
        "y": y,
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.symbol, "size": 5},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
        **more,
    }
    return [own] if band is None else [_band(name, style, x, band), own]


def _band(name: str, style: Style, x: Array, band: tuple[Array, Array]) -> dict[str, Any]:
    low, high = band
    return {
        "type": "scatter",
        "mode": "lines",
        "name": chart_text(name),
        "legendgroup": chart_text(name),
        "x": np.concatenate([x, x[::-1]]),
        "y": np.concatenate([low, high[::-1]]),
        "fill": "toself",
        "fillcolor": style.faint(),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def guide(x: Array, y: Array, **more: Any) -> dict[str, Any]:
    """A thin grey line to compare with; it has no entry in the legend."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": GREY, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
        **more,
    }


def mark_at(value: float) -> dict[str, Any]:
    """A vertical line through the point that the study starts from."""
    return {
        "type": "line",
        "x0": value,
        "x1": value,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": GREY, "width": 1, "dash": "dot"},
    }


def stacked_bars(
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    styles: Mapping[str, Style],
    hover: str,
    *,
    errors: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """One horizontal bar per label, of parts; ``errors`` to both sides of its end."""
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": chart_text(part),
            "legendgroup": chart_text(part),
            "x": values,
            "y": [chart_text(label) for label in labels],
            "marker": filling(styles[part]),
            "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
        }
        for part, values in parts.items()
    ]
    if errors is not None:
        traces[-1]["error_x"] = {"type": "data", "array": errors, "color": GREY, "thickness": 1.5}
    return traces


def filling(style: Style) -> dict[str, Any]:
    """An area's colour and hatching."""
    hatching = {
        "shape": style.pattern,
        "fillmode": "overlay",
        "fgcolor": "rgba(255,255,255,0.55)",
        "size": 7,
        "solidity": 0.25,
    }
    return {"color": style.colour, "pattern": hatching}


def label_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A vertical axis of names, the first one on top; long ones have several lines."""
    names = [chart_text(label) for label in reversed(labels)]
    return {
        "title": {},
        "categoryorder": "array",
        "categoryarray": names,
        "tickvals": names,
        "ticktext": [
            "<br>".join(map(chart_text, wrap(label, _LABEL_LETTERS))) for label in reversed(labels)
        ],
    }


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as comma-separated text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def log_axis(
    title: str,
    values: Sequence[float] | Array,
    *,
    ticks: Sequence[float] | None = None,
    text: Callable[[float], str] | None = None,
) -> dict[str, Any]:
    """A logarithmic axis around the values with a few round ticks, written by ``text``."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 10.0)
    if high < 1.5 * low:  # a flat curve stays flat, and at least one tick is in sight
        low, high = low / 1.5, high * 1.5
    margin = 0.03 * math.log10(high / low)
    shown = round_ticks(low, high) if ticks is None else list(ticks)
    return {
        "type": "log",
        "title": _title(title),
        "range": [math.log10(low) - margin, math.log10(high) + margin],
        "tickvals": shown,
        "ticktext": [(text or short)(value) for value in shown],
    }


def linear_axis(title: str, **more: Any) -> dict[str, Any]:
    """A linear axis from 0."""
    return {"title": _title(title), "rangemode": "tozero", **more}


def _title(text: str) -> dict[str, Any]:
    # A distance from the ticks, which plotly keeps by widening the margin.
    return {"text": text, "standoff": 8}


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers in the range: as many per decade as leave only a few ticks."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for mantissas in _MANTISSAS:
        every = (mantissa * 10.0**decade for decade in decades for mantissa in mantissas)
        ticks = [tick for tick in every if 0.999 * low <= tick <= 1.001 * high]
        if len(ticks) <= _MOST_TICKS:
            break
    return _few(ticks)


def doubling_ticks(values: Sequence[float]) -> list[float]:
    """Powers of two among the values' range, thinned out; the values where there are none."""
    low, high = min(values), max(values)
    powers = range(math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9) + 1)
    ticks = [2.0**power for power in powers]
    return _few(ticks if len(ticks) > 1 else sorted(set(values)))


def _few(ticks: list[float]) -> list[float]:
    step = max(1, math.ceil(len(ticks) / _MOST_TICKS))
    return ticks[::step]


def short(value: float) -> str:
    """A number for people in three digits: 1,200 or 0.25 or 3.4M."""
    for scale, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
