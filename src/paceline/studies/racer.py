"""One entry of a race, in plain figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Racer:
    """What one entry of a race did, and what was predicted of it."""

    name: str
    step_s: float
    """Measured seconds per step."""
    times_s: Sequence[float]
    """Training time at each evaluation."""
    accuracies: Sequence[float]
    """Accuracy at each of these times."""
    bytes_between_nodes: float | None
    """What all nodes sent to others during training; None if nobody could count it."""
    is_bound: bool = False
    """Whether it only shows how fast others could be at best."""
    time_to_target_s: float | None = None
    waiting_share: float | None = None
    predicted_step_s: float | None = None
    predicted_range_s: tuple[float, float] | None = None
