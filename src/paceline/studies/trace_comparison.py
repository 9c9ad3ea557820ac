"""Where a predicted and a measured trace of one run part, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.studies.charts.timeline import kind_of, length_s, spans_between
from paceline.studies.points import Array
from paceline.traces import Span, read_trace

PHASES = ("forward", "backward", "optimizer", "merge", "wait")
"""What fills a step: their lengths add up to it."""
BESIDE = ("communication", "exchange")
"""What runs beside a step's phases."""
_ALIKE = 0.02  # steps of a predicted cycle differ by rounding alone


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """One phase: seconds per step, the mean over steps and workers."""

    phase: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    """Between which eight of ten measured steps are."""

    @property
    def difference_s(self) -> float:
        """Predicted less measured."""
        return self.predicted_s - self.measured_s


@dataclass(frozen=True, kw_only=True)
class TraceComparison:
    """Two traces laid over each other."""

    step: PhaseTimes
    phases: tuple[PhaseTimes, ...]
    """Those that fill the step, then those beside it."""
    num_steps: int
    """Measured."""
    num_workers: int
    """Measured."""
    period: int
    """Steps after which the predicted ones repeat."""
    offset: int
    """The measured step that a predicted cycle fits best to."""
    steps_s: Mapping[str, tuple[float, ...]]
    """Each step of the first worker, by trace."""
    timelines: Mapping[str, tuple[Span, ...]]
    """One cycle of the first worker, by trace, from its beginning."""

    @property
    def parting(self) -> PhaseTimes:
        """The phase of the step where the two differ most."""
        inside = [each for each in self.phases if each.phase in PHASES]
        return max(inside, key=lambda each: abs(each.difference_s))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [self.step, *self.phases]
        return {
            "step_s": {"predicted": self.step.predicted_s, "measured": self.step.measured_s},
            "parting": self.parting.phase,
            "num_steps": self.num_steps,
            "num_workers": self.num_workers,
            "period": self.period,
            "phases": [{**asdict(each), "difference_s": each.difference_s} for each in rows],
        }


def compare_traces(predicted: str | Path, measured: str | Path) -> TraceComparison:
    """Lay a predicted trace over a measured one.

    Args:
        predicted: What ``predict(trace=)`` wrote.
        measured: What ``attach(trace=)`` wrote, of the same step and strategy.
    """
    ours, theirs = _cycles(predicted), _cycles(measured)
    first = next(iter(ours.values()))
    period = _period([length_s(step) for step, _ in first])
    # One cycle of the prediction is all of it; of the measurement, whole cycles.
    ours = {worker: steps[-period:] for worker, steps in ours.items()}
    count = min(map(len, theirs.values()))
    kept = count - count % period or count
    theirs = {worker: steps[-kept:] for worker, steps in theirs.items()}
    phases = [_phase(name, ours, theirs) for name in (*PHASES, *BESIDE)]
    steps_s = {
        name: tuple(length_s(step) for step, _ in next(iter(each.values())))
        for name, each in (("predicted", ours), ("measured", theirs))
    }
    offset = _offset(next(iter(ours.values())), next(iter(theirs.values())))
    return TraceComparison(
        step=_phase("step", ours, theirs),
        phases=tuple(each for each in phases if each.predicted_s or each.measured_s),
        num_steps=kept,
        num_workers=len(theirs),
        period=period,
        offset=offset,
        steps_s=steps_s,
        timelines={
            "predicted": _typical(next(iter(ours.values())), period),
            "measured": _typical(next(iter(theirs.values()))[offset:], period),
        },
    )


Step = tuple[Span, list[Span]]
"""A step and what falls into it, from its beginning."""


def _cycles(path: str | Path) -> dict[int, list[Step]]:
    """The steps of each worker, in order."""
    spans, _ = read_trace(path)
    found: dict[int, list[Step]] = {}
    for worker in sorted({span.worker for span in spans}):
        own = [span for span in spans if span.worker == worker]
        steps = sorted((s for s in own if s.track == "step"), key=lambda span: span.start_s)
        found[worker] = [(step, spans_between(own, step.start_s, step.end_s)) for step in steps]
    if not found or not all(found.values()):
        raise ValueError(f"{path} has no steps to compare.")
    return found


def _period(lengths: Sequence[float]) -> int:
    """After how many steps the later half repeats itself; all of it where it does not."""
    later = np.array(lengths[len(lengths) // 2 :])
    for period in range(1, len(later) // 2 + 1):
        if np.allclose(later[period:], later[:-period], rtol=_ALIKE):
            return period
    return max(1, len(later))


def _phase(
    name: str, ours: Mapping[int, list[Step]], theirs: Mapping[int, list[Step]]
) -> PhaseTimes:
    predicted, measured = (
        np.array([_seconds(name, step) for steps in each.values() for step in steps])
        for each in (ours, theirs)
    )
    low, high = np.quantile(measured, [0.1, 0.9])
    return PhaseTimes(
        phase=name,
        predicted_s=float(predicted.mean()),
        measured_s=float(measured.mean()),
        low_s=float(low),
        high_s=float(high),
    )


def _seconds(name: str, step: Step) -> float:
    """How long a phase lasted in a step; what overlaps counts once."""
    whole, spans = step
    if name == "step":
        return length_s(whole)
    covered, end_s = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        if kind_of(span) == name:
            covered += max(0.0, span.end_s - max(span.start_s, end_s))
            end_s = max(end_s, span.end_s)
    return covered


def _offset(cycle: Sequence[Step], measured: Sequence[Step]) -> int:
    """Where in the measured steps a predicted cycle begins: where both do the same, as it seems.

    Long steps should meet long ones, and steps with an exchange beside them such ones.
    """
    period = len(cycle)
    if len(measured) < 2 * period:
        return 0
    fits = np.zeros(period)
    for name in ("step", *BESIDE):
        shape = _normal(np.array([_seconds(name, step) for step in cycle]))
        seconds = np.array([_seconds(name, step) for step in measured])
        for offset in range(period):
            whole = (len(measured) - offset) // period * period
            cycles = seconds[offset : offset + whole].reshape(-1, period)
            fits[offset] += float(shape @ _normal(cycles.mean(axis=0)))
    return int(np.argmax(fits))


def _normal(values: Array) -> Array:
    """Of mean 0 and length 1; nothing where all are the same."""
    apart = values - values.mean()
    length = float(np.linalg.norm(apart))
    scale = 1 / length if length > _ALIKE * float(np.abs(values).max()) else 0.0
    return np.asarray(scale * apart)


def _typical(steps: Sequence[Step], period: int) -> tuple[Span, ...]:
    """The cycle of median length."""
    starts = range(0, len(steps) - period + 1, period)
    cycles = sorted([steps[start : start + period] for start in starts] or [steps], key=_cycle_s)
    chosen = cycles[len(cycles) // 2]
    begin_s = chosen[0][0].start_s
    return tuple(
        Span(span.worker, span.track, span.name, span.start_s + at_s, span.end_s + at_s)
        for step, spans in chosen
        for span in spans
        for at_s in (step.start_s - begin_s,)
    )


def _cycle_s(cycle: Sequence[Step]) -> float:
    return cycle[-1][0].end_s - cycle[0][0].start_s
