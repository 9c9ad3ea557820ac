"""Throughput and efficiency over the number of workers, by strategy."""

from __future__ import annotations

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
from paceline.studies.figures import figure, guide, line, linear_axis, log_axis, short
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import styles_of
from paceline.studies.points import Scaling
from paceline.studies.study import Study

_COLUMNS = (
    *("step_s", "low_s", "high_s"),
    *("throughput_per_s", "throughput_low_per_s", "throughput_high_per_s"),
    *("efficiency", "efficiency_low", "efficiency_high"),
)


def scaling_section(study: Study) -> Section | None:
    """How training scales; None where the number of workers was not varied."""
    if not scalings_of(study):
        return None
    rows = study.table.where(sweep="workers")
    return Section(
        heading="How training scales",
        how_to_read="A curve that follows the dotted line scales perfectly; a band is the range "
        "that two of three measurements fall into.",
        views={
            SCALING_TITLES[scaling]: (
                Panel(title="Throughput", figure=_throughput(study, scaling)),
                Panel(title="Efficiency", figure=_efficiency(study, scaling)),
            )
            for scaling in scalings_of(study)
        },
        csv=csv_of(rows, *SHARED_COLUMNS, *_COLUMNS),
        legend=styles_of(strategies_of(study)),
    )


def _throughput(study: Study, scaling: Scaling) -> Figure:
    traces, reached, hover = [], [], f"{hover_value('workers')}<br>%{{y:,.0f}} samples/s"
    for strategy, style, rows in curves_of(study, "workers", scaling):
        per_s = rows["throughput_per_s"]
        band = (rows["throughput_low_per_s"], rows["throughput_high_per_s"])
        traces += line(strategy, style, rows["workers"], per_s, hover, band=band)
        reached += [*band, per_s / rows["efficiency"]]
    traces.insert(0, guide(rows["workers"], per_s / rows["efficiency"]))
    return figure(
        traces,
        xaxis=workers_axis(study),
        yaxis=log_axis("samples/s", np.concatenate(reached), text=short),
    )


def _efficiency(study: Study, scaling: Scaling) -> Figure:
    hover = f"{hover_value('workers')}<br>efficiency %{{y:.1%}}"
    traces = []
    for strategy, style, rows in curves_of(study, "workers", scaling):
        band = (rows["efficiency_low"], rows["efficiency_high"])
        traces += line(strategy, style, rows["workers"], rows["efficiency"], hover, band=band)
    traces.insert(0, guide(rows["workers"], np.ones(len(rows))))
    return figure(
        traces,
        xaxis=workers_axis(study),
        yaxis=linear_axis("of perfect scaling", tickformat=".0%"),
    )
