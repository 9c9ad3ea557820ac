"""Maps of what limits a step, over two axes at once."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from paceline.studies.axes import TITLES, AxisName
from paceline.studies.charts.curves import (
    COLUMNS,
    axis_values,
    base_value,
    chart_axis,
    csv_of,
    hover_value,
    strategies_of,
)
from paceline.studies.figures import figure
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import RESOURCE_STYLES, Style
from paceline.studies.points import Array
from paceline.studies.study import Study
from paceline.studies.table import StudyTable

_INK = "#111111"  # on the map's own colours, which no theme changes
_EFFICIENCIES = (0.5, 0.8)


def map_sections(study: Study) -> list[Section]:
    """One section for each pair of axes that was varied together."""
    sweeps = dict.fromkeys(study.table["sweep"].tolist())
    return [_map_section(study, sweep) for sweep in sweeps if "*" in sweep]


def _map_section(study: Study, sweep: str) -> Section:
    first, second = (cast(AxisName, name) for name in sweep.split("*"))
    rows = study.table.where(sweep=sweep)
    title = f"{TITLES[second].capitalize()} over {TITLES[first]}"
    views = {
        strategy: (
            Panel(title=title, figure=_map(study, rows.where(strategy=strategy), first, second)),
        )
        for strategy in strategies_of(study)
    }
    return Section(
        heading=f"What limits a step: {TITLES[first]} and {TITLES[second]}",
        how_to_read="The colour is what limits the step there; the lines are where efficiency "
        "falls to 80% and 50%, the ring is the studied cluster and batch, and small crosses do "
        "not fit into the device's memory.",
        views=views,
        csv=csv_of(
            rows,
            "strategy",
            *COLUMNS.values(),
            "step_s",
            "low_s",
            "high_s",
            "efficiency",
            "fits",
            "bottleneck",
        ),
        legend=RESOURCE_STYLES,
        is_filled=True,
    )


def _map(study: Study, rows: StudyTable, first: AxisName, second: AxisName) -> Figure:
    x, across = np.unique(axis_values(rows, first), return_inverse=True)
    y, up = np.unique(axis_values(rows, second), return_inverse=True)

    def grid(values: Array) -> Array:
        found = np.full((len(y), len(x)), np.nan)
        found[up, across] = values
        return found

    resources = list(RESOURCE_STYLES)
    places = np.array([resources.index(name) for name in rows["bottleneck"]])
    efficiency = grid(rows["efficiency"])
    hover = np.full((len(y), len(x)), "", dtype=object)
    hover[up, across] = rows["bottleneck"]
    numbers = np.stack([_short(grid(rows["step_s"])), _short(efficiency)], axis=-1)
    cells = {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": grid(places),
        "zmin": 0,
        "zmax": len(resources) - 1,
        "colorscale": _steps([style.colour for style in RESOURCE_STYLES.values()]),
        "showscale": False,
        "text": hover,
        "customdata": numbers,
        "hovertemplate": f"{hover_value(first)}, {hover_value(second, 'y')}<br>"
        "limited by %{text}<br>%{customdata[0]:.3s}s per step, "
        "efficiency %{customdata[1]:.0%}<extra></extra>",
    }
    outside = ~rows["fits"].astype(bool)
    traces = [
        cells,
        *_efficiency_lines(x, y, efficiency),
        _crosses(x[across[outside]], y[up[outside]]),
        _ring(study, first, second),
        *(_key(name, style) for name, style in RESOURCE_STYLES.items()),
    ]
    return figure(
        traces,
        height=380,
        xaxis={**chart_axis(first, x), "showgrid": False},
        yaxis={**chart_axis(second, y), "showgrid": False},
    )


def _steps(colours: list[str]) -> list[list[Any]]:
    """A colour scale that jumps: each colour holds for one whole number."""
    last = len(colours) - 1
    edges = [0.0, *((place + 0.5) / last for place in range(last)), 1.0]
    return [
        [edge, colour]
        for place, colour in enumerate(colours)
        for edge in (edges[place], edges[place + 1])
    ]


def _efficiency_lines(x: Array, y: Array, efficiency: Array) -> list[dict[str, Any]]:
    low, high = _EFFICIENCIES
    if min(efficiency.shape) < 2:
        return []
    return [
        {
            "type": "contour",
            "x": x,
            "y": y,
            "z": _short(efficiency),
            "contours": {
                "start": low,
                "end": high,
                "size": high - low,
                "coloring": "none",
                "showlabels": True,
                "labelformat": ".0%",
                "labelfont": {"color": _INK, "size": 12},
            },
            "line": {"color": _INK, "width": 1.5},
            "showscale": False,
            "showlegend": False,
            "hoverinfo": "skip",
        }
    ]


def _crosses(x: Array, y: Array) -> dict[str, Any]:
    marker = {"symbol": "x-thin-open", "size": 5, "color": _INK}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "does not fit into memory",
        "showlegend": bool(len(x)),
        "x": x,
        "y": y,
        "marker": marker,
        "hoverinfo": "skip",
    }


def _key(name: str, style: Style) -> dict[str, Any]:
    """An entry in the legend of a picture; the page has a legend of its own."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [None],
        "y": [None],
        "marker": {"symbol": "square", "size": 12, "color": style.colour},
    }


def _ring(study: Study, first: AxisName, second: AxisName) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "as studied",
        "x": [base_value(study, first)],
        "y": [base_value(study, second)],
        "marker": {"symbol": "circle-open", "size": 14, "color": _INK, "line": {"width": 3}},
        "hoverinfo": "skip",
    }


def _short(values: Array) -> Array:
    """Four digits: more would only make the file longer."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 3 - np.floor(np.log10(np.abs(values)))
    scale = 10.0 ** np.where(np.isfinite(digits), digits, 0)
    return np.asarray(np.round(values * scale) / scale)
