"""Where the time of a training run goes, as one worker sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW = 1000
"""How many steps are kept one by one."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step: its length, and the parts of it that were not compute."""

    total_s: float
    waiting_s: float
    """Nothing to do but wait for other workers."""
    merging_s: float
    """Applying other workers' results."""

    @property
    def compute_s(self) -> float:
        """All the rest: forward, backward, optimizer, loading data."""
        return self.total_s - self.waiting_s - self.merging_s


@dataclass(kw_only=True)
class Stats:
    """Times of the steps, bytes handed to each team, and the strategy's current numbers.

    Means and shares are of the whole run. Its memory does not grow: of the last 1,000 steps it
    keeps each, of those before the sums.
    """

    steps: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """The last steps, one by one."""
    num_steps: int = 0
    """Steps taken in the whole run."""
    total_s: float = 0.0
    """Seconds of all steps."""
    waiting_s: float = 0.0
    """Of these, spent waiting for other workers."""
    merging_s: float = 0.0
    """Of these, spent applying other workers' results."""
    bytes_by_team: dict[str, int] = field(default_factory=dict)
    """Payload that this worker handed to each team."""
    status: dict[str, float] = field(default_factory=dict)
    """The strategy's numbers, such as the current period (B) and delay (W)."""

    def add(self, times: StepTimes) -> None:
        """Count one more step.

        Args:
            times: Where its time went.

        """
        self.steps.append(times)
        self.num_steps += 1
        self.total_s += times.total_s
        self.waiting_s += times.waiting_s
        self.merging_s += times.merging_s

    @property
    def waiting_share(self) -> float:
        """The share of the run's time spent waiting."""
        return self.waiting_s / self.total_s if self.total_s else 0.0

    def summary(self) -> dict[str, Any]:
        """Means per step over the whole run, and totals, as plain data."""
        count = max(1, self.num_steps)
        return {
            "num_steps": self.num_steps,
            "step_s": self.total_s / count,
            "compute_s": (self.total_s - self.waiting_s - self.merging_s) / count,
            "waiting_s": self.waiting_s / count,
            "merging_s": self.merging_s / count,
            "bytes_by_team": dict(self.bytes_by_team),
            **self.status,
        }
