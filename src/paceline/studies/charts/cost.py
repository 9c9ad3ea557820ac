"""What training costs, over the number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.studies.charts.curves import (
    SCALING_TITLES,
    SHARED_COLUMNS,
    csv_of,
    curves_of,
    hover_value,
    scalings_of,
    strategies_of,
    workers_axis,
)
from paceline.studies.figures import figure, line, log_axis
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import styles_of
from paceline.studies.points import Array, Scaling
from paceline.studies.study import Study

_COST = "dollars_per_million_samples"


def cost_section(study: Study) -> Section | None:
    """US dollars per million samples; None where prices are not known."""
    rows = study.table.where(sweep="workers")
    if not np.isfinite(rows[_COST]).any():
        return None
    return Section(
        heading="What it costs",
        how_to_read="Lower is cheaper; a curve rises where further workers wait more than they "
        "compute, and where a node is paid for but not filled.",
        views={
            SCALING_TITLES[scaling]: (
                Panel(title="US dollars per million samples", figure=_cost(study, scaling)),
            )
            for scaling in scalings_of(study)
        },
        csv=csv_of(rows, *SHARED_COLUMNS, "step_s", "low_s", "high_s", _COST),
        legend=styles_of(strategies_of(study)),
    )


def _cost(study: Study, scaling: Scaling) -> Figure:
    hover = f"{hover_value('workers')}<br>$%{{y:.3f}} per million samples"
    traces: list[dict[str, Any]] = []
    costs: list[Array] = []
    for strategy, style, rows in curves_of(study, "workers", scaling):
        cost = rows[_COST]
        band = (cost * rows["low_s"] / rows["step_s"], cost * rows["high_s"] / rows["step_s"])
        traces += line(strategy, style, rows["workers"], cost, hover, band=band)
        costs += band
    return figure(
        traces,
        xaxis=workers_axis(study),
        yaxis=log_axis("US dollars", np.concatenate(costs), text=lambda value: f"${value:,.3g}"),
    )
