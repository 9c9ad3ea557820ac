"""The step time along each axis alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cluster.units import format_duration
from paceline.studies.axes import AXES, TITLES, AxisName
from paceline.studies.charts.curves import (
    COLUMNS,
    axis_values,
    base_value,
    chart_axis,
    csv_of,
    curves_of,
    hover_value,
    strategies_of,
)
from paceline.studies.figures import figure, line, log_axis, mark_at
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import styles_of
from paceline.studies.points import Array
from paceline.studies.study import Study
from paceline.studies.table import StudyTable


def axes_section(study: Study) -> Section | None:
    """One small chart per axis; None where no axis was varied alone."""
    weak = study.table.where(scaling="weak")
    is_single = np.isin(weak["sweep"], AXES)
    if not is_single.any():
        return None
    single = StudyTable(columns={name: column[is_single] for name, column in weak.columns.items()})
    panels = [
        Panel(title=TITLES[name].capitalize(), figure=_step_times(study, name))
        for name in AXES
        if name in single["sweep"]
    ]
    return Section(
        heading="Each axis alone",
        how_to_read="Where a curve is flat, that axis does not matter; the dotted line marks the "
        "studied cluster and batch, and both scales are logarithmic.",
        views={"": panels},
        csv=csv_of(single, "sweep", "strategy", *COLUMNS.values(), "step_s", "low_s", "high_s"),
        legend=styles_of(strategies_of(study)),
    )


def _step_times(study: Study, axis: AxisName) -> Figure:
    traces: list[dict[str, Any]] = []
    times: list[Array] = []
    for strategy, style, rows in curves_of(study, axis, "weak"):
        hover = f"{hover_value(axis)}<br>%{{y:.3s}}s per step"
        band = (rows["low_s"], rows["high_s"])
        traces += line(strategy, style, axis_values(rows, axis), rows["step_s"], hover, band=band)
        times += band
    return figure(
        traces,
        height=280,
        shapes=[mark_at(base_value(study, axis))],
        xaxis=chart_axis(axis, axis_values(study.table.where(sweep=axis), axis)),
        yaxis=log_axis("time per step", np.concatenate(times), text=format_duration),
    )
