"""Predicted steps side by side: where the time goes, what they reach, what memory they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.rehearse.prediction import Prediction
from paceline.steps.capture import StepMemory
from paceline.studies.figures import (
    csv_text,
    figure,
    label_axis,
    linear_axis,
    mark_at,
    stacked_bars,
)
from paceline.studies.page import Figure, Panel, Section, TextTable, chart_text
from paceline.studies.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, TIME_STYLES, Style
from paceline.studies.words import duration, size

_BAR_PX = 44
_NEAR = 3
_MEMORY_STYLES = {
    "parameters": Style(colour=BLUE),
    "gradients": Style(colour=GREEN, pattern="\\"),
    "optimizer state": Style(colour=PURPLE, pattern="."),
    "batch": Style(colour=GREY, pattern="|"),
    "activations and workspaces": Style(colour=ORANGE, pattern="/"),
}


def parts_section(predictions: Sequence[Prediction]) -> Section:
    """Compute, exposed communication and host of each predicted step."""
    in_order = sorted(predictions, key=lambda each: each.step_s)
    labels = [each.strategy for each in in_order]
    parts = {
        "compute": [each.compute_s for each in in_order],
        "communication and waiting": [each.exposed_communication_s for each in in_order],
        "host": [max(each.host_s, 0.0) for each in in_order],
    }
    # Parts that are nothing would only fill the legend.
    shown = {name: values for name, values in parts.items() if name == "compute" or max(values) > 0}
    bars = figure(
        stacked_bars(
            labels,
            shown,
            TIME_STYLES,
            "%{x:.3s}s",
            errors=[each.uncertainty * each.step_s for each in in_order],
        ),
        barmode="stack",
        height=100 + _BAR_PX * len(labels),
        xaxis=linear_axis("time per step", tickformat="~s", ticksuffix="s"),
        yaxis=label_axis(labels),
    )
    return Section(
        heading="Where the time goes",
        how_to_read="A bar is one training step; the thin line at its end is the range that two "
        "of three measurements fall into.",
        views={"": (Panel(title="Time per step", figure=bars),)},
        csv=csv_text(
            (
                "strategy",
                "step_s",
                "low_s",
                "high_s",
                "compute_s",
                "exposed_communication_s",
                "host_s",
            ),
            (
                (
                    each.strategy,
                    each.step_s,
                    *each.range_s,
                    each.compute_s,
                    each.exposed_communication_s,
                    each.host_s,
                )
                for each in in_order
            ),
        ),
        legend={name: TIME_STYLES[name] for name in shown},
        is_filled=True,
        table=_phases(in_order),
    )


def _phases(predictions: Sequence[Prediction]) -> TextTable | None:
    rows = [
        (each.strategy, phase, duration(seconds))
        for each in predictions
        for phase, seconds in each.phases_s.items()
        if phase != "all"
    ]
    return TextTable(header=("strategy", "phase", "time per step"), rows=rows) if rows else None


def comparison_section(predictions: Sequence[Prediction]) -> Section | None:
    """Throughput and efficiency of several strategies; None for one alone."""
    if len(predictions) < 2:
        return None
    in_order = sorted(predictions, key=lambda each: each.step_s)
    panels = [
        Panel(title="Throughput", figure=_dots(in_order, "throughput_per_s")),
        Panel(title="Scaling efficiency", figure=_dots(in_order, "scaling_efficiency")),
    ]
    return Section(
        heading="Strategies compared",
        how_to_read="Further right is faster; where two lines overlap, a prediction cannot tell "
        "which of the two is.",
        views={"": panels},
        csv=csv_text(
            ("strategy", "step_s", "low_s", "high_s", "throughput_per_s", "scaling_efficiency"),
            (
                (
                    each.strategy,
                    each.step_s,
                    *each.range_s,
                    each.throughput_per_s,
                    each.scaling_efficiency,
                )
                for each in in_order
            ),
        ),
        legend={},
        table=_runs(in_order),
    )


def _dots(predictions: Sequence[Prediction], name: str) -> Figure:
    values = [getattr(each, name) for each in predictions]
    labels = [each.strategy for each in predictions]
    is_share = name == "scaling_efficiency"
    text = "%{x:.1%}" if is_share else "%{x:,.0f} samples/s"
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [chart_text(label) for label in labels],
        "marker": {"color": BLUE, "size": 11},
        "error_x": None if is_share else _throughput_range(predictions),
        "showlegend": False,
        "hovertemplate": f"{text}<extra>%{{y}}</extra>",
    }
    axis = (
        linear_axis("of perfect scaling", tickformat=".0%")
        if is_share
        else linear_axis("samples/s", tickformat="~s")
    )
    return figure([trace], height=100 + _BAR_PX * len(labels), xaxis=axis, yaxis=label_axis(labels))


def _throughput_range(predictions: Sequence[Prediction]) -> dict[str, Any]:
    samples = [each.throughput_per_s * each.step_s for each in predictions]
    low = [one / each.range_s[1] for one, each in zip(samples, predictions, strict=True)]
    # A prediction that may be off by all of it has no upper end that could be drawn.
    high = [
        one / max(each.range_s[0], each.step_s / 10)
        for one, each in zip(samples, predictions, strict=True)
    ]
    ends = list(zip(predictions, low, high, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [end - each.throughput_per_s for each, _, end in ends],
        "arrayminus": [each.throughput_per_s - begin for each, begin, _ in ends],
        "color": BLUE,
        "thickness": 2,
    }


def _runs(predictions: Sequence[Prediction]) -> TextTable | None:
    runs = [(each.strategy, each.run) for each in predictions if each.run is not None]
    if not runs:
        return None
    return TextTable(
        header=("strategy", "steps", "hours", "device-hours", "US dollars"),
        rows=[
            (
                strategy,
                f"{run.num_steps:,}",
                f"{run.seconds / 3600:,.2f}",
                f"{run.device_hours:,.1f}",
                "not known" if run.dollars is None else f"{run.dollars:,.2f}",
            )
            for strategy, run in runs
        ],
    )


def memory_section(predictions: Sequence[Prediction], memory: StepMemory) -> Section:
    """What a device's memory holds at the peak, against what it has."""
    labels = [each.strategy for each in predictions]
    standing = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer state": memory.optimizer_bytes,
        "batch": memory.batch_bytes,
    }
    parts: dict[str, list[float]] = {
        name: [float(size)] * len(labels) for name, size in standing.items()
    }
    rest = [max(0.0, each.memory_bytes - sum(standing.values())) for each in predictions]
    parts["activations and workspaces"] = rest
    limit = predictions[0].memory_limit_bytes
    # A limit far away would squeeze the bars to nothing; the sentence names it in any case.
    is_near = limit < _NEAR * max(each.memory_bytes for each in predictions)
    bars = figure(
        stacked_bars(labels, parts, _MEMORY_STYLES, "%{x:.4s}B"),
        barmode="stack",
        height=100 + _BAR_PX * len(labels),
        shapes=[mark_at(limit)] if is_near else [],
        xaxis=linear_axis("memory", tickformat="~s", ticksuffix="B"),
        yaxis=label_axis(labels),
    )
    return Section(
        heading="Memory",
        how_to_read="The peak of one device during a step, with what the strategy keeps; the "
        f"device has {size(limit)}{', the dotted line' if is_near else ''}.",
        views={"": (Panel(title="Peak memory of one device", figure=bars),)},
        csv=csv_text(
            ("strategy", *(f"{name.replace(' ', '_')}_bytes" for name in parts), "limit_bytes"),
            (
                (label, *(round(values[place]) for values in parts.values()), limit)
                for place, label in enumerate(labels)
            ),
        ),
        legend=_MEMORY_STYLES,
        is_filled=True,
    )
