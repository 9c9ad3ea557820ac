"""Local SGD: nodes train on their own and average their parameters now and then."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field

from paceline.strategies.periodic import Periodic, PeriodicOptions
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Options
from paceline.teams import Pending, Team


class LocalSgdOptions(PeriodicOptions):
    """Options of local SGD."""

    period: int = Field(8, ge=1, description="Steps from one average to the next.")


class LocalSgd(Periodic):
    """Averages the nodes' parameters every ``period`` steps (Stich 2019)."""

    options_type: ClassVar[type[Options]] = LocalSgdOptions
    options: LocalSgdOptions
    summary = "average the nodes' parameters every few steps"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.period = self.options.period


class PostLocalSgdOptions(LocalSgdOptions):
    """Options of post-local SGD."""

    sync_steps: int = Field(
        16, ge=0, description="Steps at the beginning with gradients averaged over all workers."
    )


class PostLocalSgd(LocalSgd):
    """Synchronous at first, local SGD afterwards (Lin et al. 2020)."""

    options_type: ClassVar[type[Options]] = PostLocalSgdOptions
    options: PostLocalSgdOptions
    summary = "average every gradient at first, then parameters every few steps"

    @property
    def phase(self) -> str:
        """Synchronous steps are the warm-up."""
        return "warm-up" if self.step <= self.options.sync_steps else "cycling"

    def schedule(self) -> Schedule:
        """The synchronous steps, and the rest."""
        warm_up = Phase("warm-up", self.options.sync_steps, period=1)
        return Schedule(phases=(warm_up, Phase("cycling", period=self.period)), main="cycling")

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average over all workers at first, inside the node later."""
        if self.step < self.options.sync_steps:
            return self.workers.world.all_reduce(bucket, "mean")
        return super().bucket_ready(bucket)

    def lockstep(self) -> Team:
        """All workers while the synchronous steps last."""
        is_synchronous = self.step < self.options.sync_steps
        return self.workers.world if is_synchronous else super().lockstep()

    def is_due(self, fragment: int) -> bool:
        """Every ``period`` steps, counted from the end of the synchronous ones."""
        if self.step <= self.options.sync_steps:
            self._last_starts[fragment] = self.step
            return False
        return super().is_due(fragment)
