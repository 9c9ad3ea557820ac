"""A whole training run: how many steps, how long, how many device-hours, how much money."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True)
class PhaseCost:
    """What the steps of a phase take."""

    first_s: Sequence[float] = ()
    """The first ones, each by itself: some do what no other does, such as to wait for an exchange
    that the phase before has left under way."""
    rest_s: float
    """Each of the others."""

    def seconds(self, num_steps: int) -> float:
        """The first so many steps."""
        num_rest = max(0, num_steps - len(self.first_s))
        return sum(self.first_s[:num_steps]) + num_rest * self.rest_s


def num_steps_of(samples: int, *, workers: int, batch: int) -> int:
    """Steps that it takes to see so many samples; the last one may be a small one."""
    return math.ceil(samples / (workers * batch))


def run_cost(
    *,
    samples: int,
    num_steps: int,
    counts: Mapping[str, int],
    phases: Mapping[str, PhaseCost],
    workers: int,
    price_per_hour: float | None,
) -> Run:
    """Add up a run.

    Args:
        samples: Of all epochs.
        num_steps: Optimizer steps of the run.
        counts: Steps of each phase.
        phases: What the steps of each phase take.
        workers: All workers of the cluster.
        price_per_hour: Of the cluster, if it is known.

    """
    seconds = sum(phases[name].seconds(count) for name, count in counts.items() if count)
    return Run(
        samples=samples,
        num_steps=num_steps,
        phases=counts,
        seconds=seconds,
        mean_step_s=seconds / num_steps,
        device_hours=seconds / 3600 * workers,
        dollars=None if price_per_hour is None else seconds / 3600 * price_per_hour,
    )
