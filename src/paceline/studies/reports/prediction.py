"""The report of a prediction, or of several strategies' predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.cluster import Device
from paceline.rehearse.prediction import RESOLUTION, Prediction, fastest
from paceline.steps.capture import StepMemory
from paceline.studies.charts.predictions import (
    comparison_section,
    memory_section,
    parts_section,
)
from paceline.studies.charts.roofline import roofline_section
from paceline.studies.charts.timeline import timeline_section
from paceline.studies.page import Page, TextTable
from paceline.studies.roofline import RooflineKernel
from paceline.studies.words import digits, duration, joined, run_length, size, with_range
from paceline.traces.trace import Span


def prediction_page(
    predictions: Sequence[Prediction],
    *,
    memory: StepMemory,
    device: Device,
    traces: Mapping[str, Sequence[Span]] | None = None,
    kernels: Sequence[RooflineKernel] = (),
    notes: Sequence[str] = (),
) -> Page:
    """A prediction in words and charts: time, timeline, memory, and strategies compared.

    Args:
        predictions: One for each strategy, all of one step on one cluster.
        memory: What lives in memory through the step: a capture's.
        device: The device of the (first kind of) worker.
        traces: Predicted spans by strategy, for the timeline.
        kernels: The kernels of the step, for its Roofline chart.
        notes: What else the reader should know.
    """
    first = min(predictions, key=lambda each: each.step_s)
    sections = (
        comparison_section(predictions),
        parts_section(predictions),
        timeline_section(traces or {}),
        memory_section(predictions, memory),
        roofline_section(kernels, device),
    )
    return Page(
        title=f"{first.model} on {_place(first)}: what a step costs",
        summary=_summary(predictions, first),
        overview=_overview(predictions),
        warnings=[*first.warnings, *notes],
        sections=[section for section in sections if section is not None],
    )


def _place(found: Prediction) -> str:
    if found.workers == 1:
        return f"one {found.device}"
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes:,} nodes"
    return f"{found.workers:,} × {found.device} in {nodes}"


def _summary(predictions: Sequence[Prediction], first: Prediction) -> list[str]:
    who = "One worker" if first.workers == 1 else f"With {first.strategy}, a worker"
    step = (
        f"{who} needs {with_range(first.step_s, *first.range_s)} for a step of {first.batch:,} "
        f"samples in {first.precision}: {digits(first.throughput_per_s)} samples/s"
        + ("." if first.workers == 1 else f", {first.scaling_efficiency:.0%} of perfect scaling.")
    )
    verdict = "fits into" if first.fits else "does not fit into"
    limit = (
        f"The step is limited by {first.bottleneck}. It takes {size(first.memory_bytes)} "
        f"of memory and {verdict} the device's {size(first.memory_limit_bytes)}."
    )
    return [text for text in (step, limit, _order(predictions), _run(first)) if text]


def _order(predictions: Sequence[Prediction]) -> str:
    if len(predictions) < 2:
        return ""
    close = [each.strategy for each in fastest(predictions)]
    slowest = max(predictions, key=lambda each: each.step_s)
    gap = f"{slowest.strategy} takes {duration(slowest.step_s)}"
    if len(close) > 1:
        return (
            f"{joined(close)} are within {RESOLUTION:.0%} of each other: predictions are not "
            f"accurate enough to say which one is the fastest. {gap}."
        )
    return (
        f"{close[0]} has the shortest step; {gap}. Steps alone do not decide: a strategy that "
        "exchanges less often may need more of them to reach the same accuracy."
    )


def _run(first: Prediction) -> str:
    run = first.run
    if run is None:
        return ""
    price = "" if run.dollars is None else f" and costs {run.dollars:,.2f} US dollars"
    return (
        f"The whole run of {run.samples:,} samples has {run.num_steps:,} steps, takes "
        f"{run_length(run.seconds)}{price}."
    )


def _overview(predictions: Sequence[Prediction]) -> TextTable:
    return TextTable(
        header=("strategy", "time per step", "samples/s", "efficiency", "memory", "limited by"),
        rows=[
            (
                each.strategy,
                with_range(each.step_s, *each.range_s),
                digits(each.throughput_per_s),
                f"{each.scaling_efficiency:.0%}",
                f"{size(each.memory_bytes)}{'' if each.fits else ', does not fit'}",
                each.bottleneck,
            )
            for each in sorted(predictions, key=lambda each: each.step_s)
        ],
    )
