"""The charts of a study along its axes: scaling, where the time goes, gains, cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.cluster.units import format_bandwidth, format_duration
from paceline.study.axes import AXES, TITLES, AxisName
from paceline.study.figures import (
    doubling_ticks,
    figure,
    guide,
    line,
    linear_axis,
    log_axis,
    mark_at,
    short,
)
from paceline.study.page import Figure, Panel, Section
from paceline.study.palette import BLUE, ORANGE, RESOURCE_STYLES, Style, styles_of
from paceline.study.points import SCALINGS, Array, Scaling
from paceline.study.study import Study
from paceline.study.table import StudyTable

COLUMNS: dict[AxisName, str] = {
    **{name: name for name in AXES},
    "link": "link_bytes_per_s",
}
"""The table's column of each axis."""
SCALING_TITLES: dict[Scaling, str] = {
    "weak": "weak scaling: constant batch per worker",
    "strong": "strong scaling: constant global batch",
}
_HOVERS: dict[AxisName, str] = {
    "batch": "batch %{x:,} per worker",
    "arithmetic": "%{x:.3g} times the arithmetic",
    "memory_bandwidth": "%{x:.3g} times the memory bandwidth",
    "link": "%{x:.3s}bit/s",
    "workers": "%{x:,} workers",
}
_STEP_HOVER = "%{y:.3s}s per step"
_PARTS = {"compute": Style(colour=BLUE), "communication and waiting": Style(colour=ORANGE)}
_SHARED = ("strategy", "scaling", "batch", "link_bytes_per_s", "workers", "nodes")


def scaling_section(study: Study) -> Section | None:
    """Throughput and efficiency over the number of workers, by strategy."""
    views = {
        SCALING_TITLES[scaling]: (
            Panel(title="Throughput", figure=_throughput(study, scaling)),
            Panel(title="Efficiency", figure=_efficiency(study, scaling)),
        )
        for scaling in _scalings(study)
    }
    rows = study.table.where(sweep="workers")
    return _section(
        "How training scales",
        "A curve that follows the dotted line scales perfectly; a band is the range that two of "
        "three measurements fall into.",
        views,
        csv_of(rows, *_SHARED, "step_s", "low_s", "high_s", "throughput_per_s", "efficiency"),
        styles_of(strategies_of(study)),
    )


def time_section(study: Study) -> Section | None:
    """Compute and exposed communication over the number of workers, one view per strategy."""
    views = {
        strategy: tuple(
            Panel(
                title=SCALING_TITLES[scaling].capitalize(),
                figure=_time_parts(study, along(study, "workers", strategy, scaling), scaling),
            )
            for scaling in _scalings(study)
        )
        for strategy in strategies_of(study)
    }
    rows = study.table.where(sweep="workers")
    return _section(
        "Where the time goes",
        "The upper part is communication that no computation hides, and waiting for slower "
        "workers; with a constant global batch, as a share of the step.",
        views,
        csv_of(rows, *_SHARED, "step_s", "exposed_communication_s"),
        _PARTS,
        is_filled=True,
    )


def axes_section(study: Study) -> Section | None:
    """The step time along each axis alone."""
    panels = tuple(
        Panel(title=TITLES[name].capitalize(), figure=_step_times(study, name))
        for name in AXES
        if len(study.table.where(sweep=name, scaling="weak"))
    )
    rows = study.table.where(scaling="weak")
    single = StudyTable(
        columns={
            name: column[np.isin(rows["sweep"], AXES)] for name, column in rows.columns.items()
        }
    )
    return _section(
        "Each axis alone",
        "Where a curve is flat, that axis does not matter; the dotted line marks the studied "
        "cluster and batch, and both scales are logarithmic.",
        {"": panels},
        csv_of(single, "sweep", "strategy", *COLUMNS.values(), "step_s", "low_s", "high_s"),
        styles_of(strategies_of(study)),
    )


def gains_section(study: Study) -> Section | None:
    """What a tenth more of each resource brings, one view per strategy."""
    rows = study.table.where(sweep="workers", scaling="weak")
    views: dict[str, list[Panel]] = {}
    for strategy in strategies_of(study):
        base = _gains_at_base(at_base(study, strategy))
        views[strategy] = [Panel(title="As studied", figure=base)]
        if len(rows):
            curves = _gains_along(study, strategy)
            views[strategy].append(Panel(title="By number of workers", figure=curves))
    return _section(
        "What more of each resource brings",
        "How much shorter a step gets with 10% more of one resource; the largest gain shows what "
        "limits the step.",
        views,
        csv_of(
            rows if len(rows) else study.table,
            *_SHARED,
            *(gain_column(name) for name in RESOURCE_STYLES),
        ),
        RESOURCE_STYLES,
    )


def cost_section(study: Study) -> Section | None:
    """US dollars per million samples over the number of workers; None without prices."""
    if not np.isfinite(study.table["dollars_per_million_samples"]).any():
        return None
    views = {
        SCALING_TITLES[scaling]: (
            Panel(title="US dollars per million samples", figure=_cost(study, scaling)),
        )
        for scaling in _scalings(study)
    }
    rows = study.table.where(sweep="workers")
    return _section(
        "What it costs",
        "Lower is cheaper; a curve rises where further workers wait more than they compute, and "
        "where a node is paid for but not filled.",
        views,
        csv_of(rows, *_SHARED, "step_s", "low_s", "high_s", "dollars_per_million_samples"),
        styles_of(strategies_of(study)),
    )


def strategies_of(study: Study) -> list[str]:
    """The studied strategies in their order."""
    return list(dict.fromkeys(study.table["strategy"].tolist()))


def along(study: Study, axis: AxisName, strategy: str, scaling: Scaling = "weak") -> StudyTable:
    """A strategy's points along one axis."""
    return study.table.where(sweep=axis, strategy=strategy, scaling=scaling)


def at_base(study: Study, strategy: str) -> dict[str, Any]:
    """The strategy's point that is nearest to the studied cluster and batch."""
    rows = study.table.where(strategy=strategy)
    distance = sum(
        np.abs(np.log(rows[COLUMNS[name]].astype(float) / study.base[name])) for name in AXES
    )
    place = int(np.argmin(np.asarray(distance)))
    return {name: column[place].item() for name, column in rows.columns.items()}


def axis_values(table: StudyTable, name: AxisName) -> Array:
    """An axis's values as charts show them: links in bit/s."""
    return table[COLUMNS[name]] * (8 if name == "link" else 1)


def chart_axis(name: AxisName, values: Sequence[float] | Array) -> dict[str, Any]:
    """A logarithmic chart axis for an axis of the study."""
    if name == "link":
        return log_axis(
            TITLES[name], values, text=lambda bits: format_bandwidth(bits / 8, bits=True)
        )
    ticks = doubling_ticks([float(value) for value in values])
    title = TITLES[name].replace(" of the device", "")  # else too long for a small chart
    return log_axis(title, values, ticks=ticks)


def gain_column(resource: str) -> str:
    """The table's column with a resource's gain."""
    return f"gain_{resource.replace(' ', '_')}"


def csv_of(table: StudyTable, *columns: str) -> str:
    """Some columns as CSV."""
    return StudyTable(columns={name: table[name] for name in columns}).to_csv()


def _section(
    heading: str,
    how_to_read: str,
    views: Mapping[str, Sequence[Panel]],
    csv: str,
    legend: dict[str, Style],
    *,
    is_filled: bool = False,
) -> Section | None:
    """None where nothing was studied that it could show."""
    if not any(panel.figure["data"] for panels in views.values() for panel in panels):
        return None
    return Section(
        heading=heading,
        how_to_read=how_to_read,
        views=views,
        csv=csv,
        legend=legend,
        is_filled=is_filled,
    )


def _scalings(study: Study) -> list[Scaling]:
    return [
        scaling for scaling in SCALINGS if len(study.table.where(sweep="workers", scaling=scaling))
    ]


def _curves(
    study: Study, axis: AxisName, scaling: Scaling
) -> Iterable[tuple[str, Style, StudyTable]]:
    for strategy, style in styles_of(strategies_of(study)).items():
        rows = along(study, axis, strategy, scaling)
        if len(rows):
            yield strategy, style, rows


def _throughput(study: Study, scaling: Scaling) -> Figure:
    traces, reached, hover = [], [], f"{_HOVERS['workers']}<br>%{{y:,.0f}} samples/s"
    for strategy, style, rows in _curves(study, "workers", scaling):
        per_s = rows["throughput_per_s"]
        samples = per_s * rows["step_s"]
        band = (samples / rows["high_s"], samples / np.maximum(rows["low_s"], 1e-12))
        traces += line(strategy, style, rows["workers"], per_s, hover, band=band)
        reached += [*band, per_s / rows["efficiency"]]
    traces.insert(0, guide(rows["workers"], per_s / rows["efficiency"]))
    return figure(
        traces,
        xaxis=chart_axis("workers", study.table.where(sweep="workers")["workers"]),
        yaxis=log_axis("samples/s", np.concatenate(reached), text=short),
    )


def _efficiency(study: Study, scaling: Scaling) -> Figure:
    hover = f"{_HOVERS['workers']}<br>efficiency %{{y:.1%}}"
    traces = []
    for strategy, style, rows in _curves(study, "workers", scaling):
        traces += line(strategy, style, rows["workers"], rows["efficiency"], hover)
    traces.insert(0, guide(rows["workers"], np.ones(len(rows))))
    return figure(
        traces,
        xaxis=chart_axis("workers", study.table.where(sweep="workers")["workers"]),
        yaxis=linear_axis("of perfect scaling", tickformat=".0%"),
    )


def _time_parts(study: Study, rows: StudyTable, scaling: Scaling) -> Figure:
    exposed = rows["exposed_communication_s"]
    parts = dict(zip(_PARTS, (rows["step_s"] - exposed, exposed), strict=True))
    hover = f"{_HOVERS['workers']}<br>%{{y:.3s}}s"
    traces = [
        {
            **line(name, _PARTS[name], rows["workers"], seconds, hover)[0],
            "mode": "lines",
            "stackgroup": "step",
            "fillcolor": _PARTS[name].faint(0.6),
            # With a constant global batch the first step dwarfs all others: shares can be seen.
            "groupnorm": "fraction" if scaling == "strong" else "",
        }
        for name, seconds in parts.items()
    ]
    seconds_axis = linear_axis("time per step", tickformat="~s", ticksuffix="s")
    shares_axis = linear_axis("share of the step", tickformat=".0%")
    return figure(
        traces,
        hovermode="x unified",
        xaxis=chart_axis("workers", study.table.where(sweep="workers")["workers"]),
        yaxis=shares_axis if scaling == "strong" else seconds_axis,
    )


def _step_times(study: Study, axis: AxisName) -> Figure:
    traces: list[dict[str, Any]] = []
    times: list[Array] = []
    for strategy, style, rows in _curves(study, axis, "weak"):
        hover = f"{_HOVERS[axis]}<br>{_STEP_HOVER}"
        band = (rows["low_s"], rows["high_s"])
        traces += line(strategy, style, axis_values(rows, axis), rows["step_s"], hover, band=band)
        times += band
    base = study.base[axis] * (8 if axis == "link" else 1)
    return figure(
        traces,
        height=280,
        shapes=[mark_at(base)],
        xaxis=chart_axis(axis, axis_values(study.table.where(sweep=axis), axis)),
        yaxis=log_axis("time per step", np.concatenate(times), text=format_duration),
    )


def _gains_at_base(row: dict[str, Any]) -> Figure:
    resources = list(RESOURCE_STYLES)[::-1]  # plotly stacks bars from the bottom
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [row[gain_column(name)]],
            "y": [name],
            "legendgroup": name,
            "marker": {"color": RESOURCE_STYLES[name].colour},
            "hovertemplate": "%{x:.2%} shorter<extra>%{y}</extra>",
        }
        for name in resources
    ]
    return figure(traces, xaxis=linear_axis("shorter step", tickformat=".1%"), yaxis={"title": {}})


def _gains_along(study: Study, strategy: str) -> Figure:
    rows = along(study, "workers", strategy)
    hover = f"{_HOVERS['workers']}<br>%{{y:.2%}} shorter"
    traces = []
    for name, style in RESOURCE_STYLES.items():
        traces += line(name, style, rows["workers"], rows[gain_column(name)], hover)
    return figure(
        traces,
        xaxis=chart_axis("workers", study.table.where(sweep="workers")["workers"]),
        yaxis=linear_axis("shorter step", tickformat=".1%"),
    )


def _cost(study: Study, scaling: Scaling) -> Figure:
    hover = f"{_HOVERS['workers']}<br>$%{{y:.3f}} per million samples"
    traces: list[dict[str, Any]] = []
    costs: list[Array] = []
    for strategy, style, rows in _curves(study, "workers", scaling):
        cost = rows["dollars_per_million_samples"]
        band = (cost * rows["low_s"] / rows["step_s"], cost * rows["high_s"] / rows["step_s"])
        traces += line(strategy, style, rows["workers"], cost, hover, band=band)
        costs += band
    return figure(
        traces,
        xaxis=chart_axis("workers", study.table.where(sweep="workers")["workers"]),
        yaxis=log_axis("US dollars", np.concatenate(costs), text=lambda value: f"${value:,.3g}"),
    )
