"""The charts of a race: accuracy over time, predicted against measured steps, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.cluster.units import format_duration
from paceline.studies.figures import (
    csv_text,
    figure,
    filling,
    guide,
    label_axis,
    line,
    linear_axis,
    log_axis,
)
from paceline.studies.page import Figure, Panel, Section, chart_text
from paceline.studies.palette import BLUE, Style, styles_of
from paceline.studies.racer import Racer

_BAR_PX = 44


def accuracy_section(racers: Sequence[Racer], target: float) -> Section | None:
    """Accuracy over the seconds of training, a curve per entry."""
    styles = styles_of([each.name for each in racers])
    shown = [each for each in racers if each.accuracies]
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    for each in shown:
        times, reached = np.array(each.times_s), np.array(each.accuracies)
        hover = "after %{x:.3s}s<br>accuracy %{y:.1%}"
        traces += line(each.name, styles[each.name], times, reached, hover)
    latest = max(each.times_s[-1] for each in shown)
    traces.insert(0, guide(np.array([0.0, latest]), np.array([target, target])))
    chart = figure(
        traces,
        height=380,
        xaxis=linear_axis("training time", ticksuffix=" s"),
        yaxis={**linear_axis("accuracy", tickformat=".0%"), "rangemode": "normal"},
    )
    return Section(
        heading="Accuracy over time",
        how_to_read="The curve furthest to the left reaches an accuracy first; the dotted line is "
        f"the target of {target:.0%}, and evaluation is not timed.",
        views={"": (Panel(title="Accuracy on the test set", figure=chart),)},
        csv=csv_text(
            ("strategy", "training_s", "accuracy"),
            (
                (each.name, seconds, accuracy)
                for each in shown
                for seconds, accuracy in zip(each.times_s, each.accuracies, strict=True)
            ),
        ),
        legend={each.name: styles[each.name] for each in shown},
    )


def measured_section(racers: Sequence[Racer]) -> Section | None:
    """Measured step times over predicted ones; None where nothing was predicted."""
    shown = [each for each in racers if each.predicted_step_s is not None]
    if not shown:
        return None
    styles = styles_of([each.name for each in racers])
    return Section(
        heading="Predicted against measured",
        how_to_read="On the dotted line a prediction is right; below it the step was faster than "
        "predicted, above it slower, and the line through a mark is the predicted range.",
        views={"": (Panel(title="Time per step", figure=_measured(shown, styles)),)},
        csv=csv_text(
            ("strategy", "predicted_step_s", "low_s", "high_s", "measured_step_s"),
            (
                (
                    each.name,
                    each.predicted_step_s,
                    *(each.predicted_range_s or ("", "")),
                    each.step_s,
                )
                for each in shown
            ),
        ),
        legend={
            each.name: Style(colour=styles[each.name].colour, symbol=styles[each.name].symbol)
            for each in shown
        },
    )


def _measured(racers: Sequence[Racer], styles: dict[str, Style]) -> Figure:
    times = [
        seconds
        for each in racers
        for seconds in (each.step_s, each.predicted_step_s, *(each.predicted_range_s or ()))
        if seconds
    ]
    both = np.array([min(times) / 1.2, max(times) * 1.2])
    traces = [guide(both, both)]
    for each in racers:
        predicted_s = each.predicted_step_s or 0.0
        low, high = each.predicted_range_s or (predicted_s, predicted_s)
        style = styles[each.name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": chart_text(each.name),
                "legendgroup": chart_text(each.name),
                "x": [predicted_s],
                "y": [each.step_s],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - predicted_s],
                    # A logarithmic axis has no zero.
                    "arrayminus": [predicted_s - max(low, predicted_s / 10)],
                    "color": style.colour,
                },
                "marker": {"color": style.colour, "symbol": style.symbol, "size": 12},
                "hovertemplate": "predicted %{x:.3s}s<br>measured %{y:.3s}s"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return figure(
        traces,
        height=400,
        xaxis=log_axis("predicted", both, text=format_duration),
        yaxis=log_axis("measured", both, text=format_duration),
    )


def bytes_section(racers: Sequence[Racer]) -> Section | None:
    """What went over the links between nodes; None where nothing did."""
    counted = {
        each.name: each.bytes_between_nodes
        for each in racers
        if each.bytes_between_nodes is not None
    }
    if not any(counted.values()):
        return None
    labels = list(counted)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": list(counted.values()),
        "y": [chart_text(label) for label in labels],
        "marker": filling(Style(colour=BLUE)),
        "showlegend": False,
        "texttemplate": "%{x:.3s}B",
        "textposition": "auto",
        "hovertemplate": "%{x:.4s}B<extra>%{y}</extra>",
    }
    chart = figure(
        [bars],
        height=100 + _BAR_PX * len(labels),
        xaxis=linear_axis("sent between nodes", tickformat="~s", ticksuffix="B"),
        yaxis=label_axis(labels),
    )
    return Section(
        heading="Bytes between nodes",
        how_to_read="What all nodes sent to others during training; fewer bytes are less time on "
        "slow links.",
        views={"": (Panel(title="Bytes sent, whole training", figure=chart),)},
        csv=csv_text(
            ("strategy", "bytes_between_nodes"),
            ((name, round(num_bytes)) for name, num_bytes in counted.items()),
        ),
        legend={},
    )
