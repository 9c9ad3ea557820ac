"""What a user wishes of a run, and how far a way to train is from it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from paceline.cluster.units import format_clock

_UNITS_S = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(d|h|min|m|sec|s)")
MILLION = 1_000_000
_LONGEST_TEXT = 100


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Limits of a run; None where there is none."""

    samples: int | None = None
    """Of the whole run, all epochs together."""
    max_global_batch: int | None = None
    deadline_s: float | None = None
    budget_dollars: float | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "max_global_batch", "deadline_s", "budget_dollars"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {value}.")
        if self.samples is None and not self.deadline_s is self.budget_dollars is None:
            raise ValueError(
                "A deadline or a budget is of a whole run: give its number of samples (--samples)."
            )

    def violation(self, seconds: float, dollars: float | None) -> float:
        """By which share the run exceeds the limit that it exceeds most; 0 where it keeps all."""
        excesses = [0.0]
        if self.deadline_s is not None:
            excesses.append(seconds / self.deadline_s - 1)
        if self.budget_dollars is not None:
            assert dollars is not None
            excesses.append(dollars / self.budget_dollars - 1)
        return max(excesses)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one wish is met, and by how much it is not."""

    wish: str
    limit: float
    value: float
    """What the advised run takes, in the unit of the limit: seconds or US dollars."""
    high: float
    """The upper end of its range."""
    is_met: bool
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "wish": self.wish,
            "limit": self.limit,
            "value": self.value,
            "high": self.high,
            "is_met": self.is_met,
            "sentence": self.sentence,
        }


def judge(wish: str, limit: float, value: float, high: float) -> Verdict:
    """A wish for at most ``limit``, and what is predicted.

    Args:
        wish: ``"deadline"`` or ``"budget"``.
        limit: Seconds or US dollars.
        value: What is predicted.
        high: The upper end of its range.

    """
    text = clock if wish == "deadline" else money
    takes = "takes" if wish == "deadline" else "costs"
    if value > limit:
        sentence = (
            f"The {wish} of {text(limit)} cannot be met: the run {takes} {text(value)}, which is "
            f"{text(value - limit)} too {'long' if wish == 'deadline' else 'much'} "
            f"({_more(value / limit)})."
        )
    elif high > limit:
        sentence = (
            f"The {wish} of {text(limit)} is met by the prediction, {text(value)}, but not by the "
            f"upper end of its range, {text(high)}."
        )
    else:
        sentence = f"The {wish} of {text(limit)} is met: the run {takes} {text(value)}."
    return Verdict(
        wish=wish, limit=limit, value=value, high=high, is_met=value <= limit, sentence=sentence
    )


def _more(ratio: float) -> str:
    """In per cent up to ten times as much, which is as far as they can be pictured."""
    return f"{ratio - 1:.0%} more" if ratio < 10 else f"{ratio:,.0f} times the limit"


def parse_time(text: str) -> float:
    """Seconds of a time such as ``8h``, ``1h30m``, ``2d`` or ``45min``.

    Args:
        text: Days, hours, minutes and seconds, each with its unit.

    """
    parts = _PART.findall(text.replace(" ", "")) if len(text) <= _LONGEST_TEXT else []
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        raise ValueError(f"{text[:40]!r} is not a time: write it as 8h, 1h30m, 2d or 45min.")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def clock(seconds: float) -> str:
    """A time for people: 3:12:05, or 2 days, 3:12:05."""
    return format_clock(seconds)


def money(dollars: float) -> str:
    """US dollars for people."""
    return f"{dollars:,.2f} US dollars"
