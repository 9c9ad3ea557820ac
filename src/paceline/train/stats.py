"""Where the time of a training run goes, as one worker sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step: its length, and the parts of it that were not compute."""

    total_s: float
    waiting_s: float
    """Nothing to do but wait for other workers."""
    merging_s: float
    """Taking over other workers' results."""

    @property
    def compute_s(self) -> float:
        """All the rest: forward, backward, optimizer, loading data."""
        return self.total_s - self.waiting_s - self.merging_s


@dataclass(kw_only=True)
class Stats:
    """Times of every step, bytes handed to each team, and the strategy's current numbers."""

    steps: list[StepTimes] = field(default_factory=list)
    bytes_by_team: dict[str, int] = field(default_factory=dict)
    """Payload that this worker handed to each team."""
    status: dict[str, float] = field(default_factory=dict)
    """The strategy's numbers, such as the current period (B) and delay (W)."""

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return len(self.steps)

    @property
    def waiting_share(self) -> float:
        """The share of the run's time spent waiting."""
        total_s = sum(step.total_s for step in self.steps)
        return sum(step.waiting_s for step in self.steps) / total_s if total_s else 0.0

    def summary(self) -> dict[str, Any]:
        """Means and totals, as plain data."""
        count = max(1, len(self.steps))
        return {
            "num_steps": self.num_steps,
            "step_s": sum(step.total_s for step in self.steps) / count,
            "compute_s": sum(step.compute_s for step in self.steps) / count,
            "waiting_s": sum(step.waiting_s for step in self.steps) / count,
            "merging_s": sum(step.merging_s for step in self.steps) / count,
            "bytes_by_team": dict(self.bytes_by_team),
            **self.status,
        }
