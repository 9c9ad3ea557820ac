"""A whole training run: how many steps, how long, how many device-hours, how much money."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run of many samples costs, from its first step to its last."""

    samples: int
    """Of all epochs."""
    num_steps: int
    phases: Mapping[str, int]
    """Steps by phase."""
    seconds: float
    mean_step_s: float
    device_hours: float
    dollars: float | None
    """None if the cluster's price is not known."""


def num_steps_of(samples: int, *, workers: int, batch: int) -> int:
    """Steps that it takes to see so many samples; the last one may be a small one."""
    return math.ceil(samples / (workers * batch))


def run_cost(
    *,
    samples: int,
    num_steps: int,
    phases: Mapping[str, int | None],
    phases_s: Mapping[str, float],
    workers: int,
    price_per_hour: float | None,
) -> Run:
    """Add up a run: ``phases`` has the steps of each phase, None standing for what is left."""
    known = sum(count for count in phases.values() if count is not None)
    counts = {
        name: max(0, num_steps - known) if count is None else min(count, num_steps)
        for name, count in phases.items()
    }
    seconds = sum(count * phases_s[name] for name, count in counts.items() if count)
    return Run(
        samples=samples,
        num_steps=num_steps,
        phases=counts,
        seconds=seconds,
        mean_step_s=seconds / num_steps,
        device_hours=seconds / 3600 * workers,
        dollars=None if price_per_hour is None else seconds / 3600 * price_per_hour,
    )
