"""The decision: which candidate trains from now on, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from paceline.auto.candidates import Candidate
from paceline.cluster.units import format_duration

# By how much a play of many steps may be shorter than as many steps alone: what is under way at its
# end is not waited for.
_SLACK = 0.01


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A candidate, the seconds that it and others are expected to take, and the reason."""

    chosen: Candidate
    expected_s: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "chosen": self.chosen.to_dict(),
            "expected_s": self.expected_s,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` made."""
        return cls(
            chosen=Candidate.from_dict(values["chosen"]),
            expected_s=values["expected_s"],
            reason=values["reason"],
        )


def decide(
    candidates: Sequence[Candidate],
    step_s: Callable[[Candidate], float],
    *,
    alone_s: float,
    least_gain: float,
    current: Candidate | None = None,
) -> Decision:
    """The first candidate that is about as fast as the fastest.

    Candidates come in the order of how much they change training, so one that changes it more has
    to be worth it.

    Args:
        candidates: What may be chosen, the least change first.
        step_s: Seconds per step of a candidate.
        alone_s: Seconds of a step without any exchange, below which no candidate can be.
        least_gain: The share of the step time that a larger change has to save.
        current: What trains now, if it is to stay unless another saves as much, or is exact.
    """
    times_s: dict[Candidate, float] = {}
    for candidate in candidates:
        if times_s and not candidate.is_exact:
            could_be_s = alone_s * (1 - _SLACK)
            if could_be_s >= min(times_s.values()) * (1 - least_gain):
                break  # nothing could be worth a larger change
        times_s[candidate] = step_s(candidate)
    fastest_s = min(times_s.values())
    chosen = next(each for each in times_s if fastest_s >= times_s[each] * (1 - least_gain))
    if current is not None and (current.is_exact or not chosen.is_exact):
        times_s.setdefault(current, step_s(current))
        if fastest_s >= times_s[current] * (1 - least_gain):
            chosen = current
    return Decision(
        chosen=chosen, expected_s=times_s[chosen], reason=describe(chosen, times_s, alone_s)
    )


def describe(chosen: Candidate, times_s: Mapping[Candidate, float], alone_s: float) -> str:
    """Why a candidate was chosen: what it takes, and the best of each other strategy."""
    others = sorted((each for each in times_s if each != chosen), key=lambda each: times_s[each])
    best_of_name: dict[str, Candidate] = {}
    for each in others:
        if each.name != chosen.name:
            best_of_name.setdefault(each.name, each)
    compared = [f"{each} {duration(times_s[each])}" for each in best_of_name.values()]
    against = f", against {', '.join(compared)}" if compared else ""
    return (
        f"{chosen} takes {duration(times_s[chosen])} per step{against}; computing alone "
        f"takes {duration(alone_s)}"
    )


def duration(seconds: float) -> str:
    """A step time for people, in three digits: 95.6 ms or 1.34 s."""
    return format_duration(float(f"{seconds:.3g}"))
