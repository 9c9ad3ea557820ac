"""What charts take from a study: points along an axis, and the axis itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paceline.cluster.units import format_bandwidth
from paceline.studies.axes import AXES, TITLES, AxisName
from paceline.studies.figures import doubling_ticks, log_axis
from paceline.studies.palette import Style, styles_of
from paceline.studies.points import SCALINGS, Array, Scaling
from paceline.studies.study import Study
from paceline.studies.table import StudyTable

COLUMNS: dict[AxisName, str] = {
    **{name: name for name in AXES},
    "link": "link_bytes_per_s",
}
"""The table's column of each axis."""
SHARED_COLUMNS = ("strategy", "scaling", "batch", "link_bytes_per_s", "workers", "nodes")
"""What the data of a chart over workers begins with."""
SCALING_TITLES: dict[Scaling, str] = {
    "weak": "weak scaling: constant batch per worker",
    "strong": "strong scaling: constant global batch",
}


def strategies_of(study: Study) -> list[str]:
    """The studied strategies in their order."""
    return list(dict.fromkeys(study.table["strategy"].tolist()))


def scalings_of(study: Study) -> list[Scaling]:
    """The kinds of scaling that were studied."""
    return [
        scaling for scaling in SCALINGS if len(study.table.where(sweep="workers", scaling=scaling))
    ]


def along(study: Study, axis: AxisName, strategy: str, scaling: Scaling = "weak") -> StudyTable:
    """A strategy's points along one axis."""
    return study.table.where(sweep=axis, strategy=strategy, scaling=scaling)


def curves_of(
    study: Study, axis: AxisName, scaling: Scaling
) -> Iterator[tuple[str, Style, StudyTable]]:
    """Each strategy's points along one axis, with its style."""
    for strategy, style in styles_of(strategies_of(study)).items():
        rows = along(study, axis, strategy, scaling)
        if len(rows):
            yield strategy, style, rows


def at_base(study: Study, strategy: str) -> dict[str, Any]:
    """The strategy's point that is nearest to the studied cluster and batch."""
    rows = study.table.where(strategy=strategy)
    distance = sum(
        np.abs(np.log(rows[COLUMNS[name]].astype(float) / study.base[name])) for name in AXES
    )
    place = int(np.argmin(np.asarray(distance)))
    return {name: column[place].item() for name, column in rows.columns.items()}


def csv_of(table: StudyTable, *columns: str) -> str:
    """Some columns as CSV."""
    return StudyTable(columns={name: table[name] for name in columns}).to_csv()


def axis_values(table: StudyTable, name: AxisName) -> Array:
    """An axis's values as charts show them: links in bit/s."""
    return table[COLUMNS[name]] * _scale(name)


def base_value(study: Study, name: AxisName) -> float:
    """Where the studied cluster and batch are on an axis, as charts show it."""
    return study.base[name] * _scale(name)


def _scale(name: AxisName) -> int:
    return 8 if name == "link" else 1


def chart_axis(name: AxisName, values: Sequence[float] | Array) -> dict[str, Any]:
    """A logarithmic chart axis for an axis of the study."""
    if name == "link":
        return log_axis(
            TITLES[name], values, text=lambda bits: format_bandwidth(bits / 8, bits=True)
        )
    ticks = doubling_ticks([float(value) for value in values])
    title = TITLES[name].replace(" of the device", "")  # else too long for a small chart
    return log_axis(title, values, ticks=ticks)


def workers_axis(study: Study) -> dict[str, Any]:
    """The same axis for all charts over workers."""
    return chart_axis("workers", study.table.where(sweep="workers")["workers"])


def hover_value(name: AxisName, letter: str = "x") -> str:
    """A value of an axis in the label of the mouse, for plotly."""
    if name == "link":
        return f"%{{{letter}:.3s}}bit/s"
    if name in ("workers", "batch"):
        return f"%{{{letter}:,}} {'workers' if name == 'workers' else 'samples per worker'}"
    return f"%{{{letter}:.3g}} times the {name.replace('_', ' ')}"
