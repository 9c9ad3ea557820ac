"""What a tenth more of each resource brings."""

from __future__ import annotations

from typing import Any

from paceline.studies.charts.curves import (
    SHARED_COLUMNS,
    along,
    at_base,
    csv_of,
    hover_value,
    strategies_of,
    workers_axis,
)
from paceline.studies.figures import figure, line, linear_axis
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import RESOURCE_STYLES
from paceline.studies.study import Study


def gains_section(study: Study) -> Section:
    """At the studied cluster and batch, and over workers; one view per strategy."""
    rows = study.table.where(sweep="workers", scaling="weak")
    views: dict[str, list[Panel]] = {}
    for strategy in strategies_of(study):
        base = _gains_at_base(at_base(study, strategy))
        views[strategy] = [Panel(title="As studied", figure=base)]
        if len(rows):
            curves = _gains_along(study, strategy)
            views[strategy].append(Panel(title="By number of workers", figure=curves))
    return Section(
        heading="What more of each resource brings",
        how_to_read="How much shorter a step gets with 10% more of one resource; the largest gain "
        "shows what limits the step.",
        views=views,
        csv=csv_of(
            rows if len(rows) else study.table,
            *SHARED_COLUMNS,
            *(_column(name) for name in RESOURCE_STYLES),
        ),
        legend=RESOURCE_STYLES,
    )


def _column(resource: str) -> str:
    return f"gain_{resource.replace(' ', '_')}"


def _gains_at_base(row: dict[str, Any]) -> Figure:
    resources = list(RESOURCE_STYLES)[::-1]  # plotly stacks bars from the bottom
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [row[_column(name)]],
            "y": [name],
            "legendgroup": name,
            "showlegend": False,
            "marker": {"color": RESOURCE_STYLES[name].colour},
            "hovertemplate": "%{x:.2%} shorter<extra>%{y}</extra>",
        }
        for name in resources
    ]
    return figure(traces, xaxis=linear_axis("shorter step", tickformat=".1%"), yaxis={"title": {}})


def _gains_along(study: Study, strategy: str) -> Figure:
    rows = along(study, "workers", strategy)
    hover = f"{hover_value('workers')}<br>%{{y:.2%}} shorter"
    traces = []
    for name, style in RESOURCE_STYLES.items():
        traces += line(name, style, rows["workers"], rows[_column(name)], hover)
    return figure(
        traces,
        xaxis=workers_axis(study),
        yaxis=linear_axis("shorter step", tickformat=".1%"),
    )
