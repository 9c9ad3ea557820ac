"""Local SGD: nodes train on their own and average their parameters now and then."""

from __future__ import annotations

import torch

from paceline.cluster.record import Count, CountOrZero, Positive
from paceline.strategies.periodic import Periodic, Weighting
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.wire import WireName
from paceline.teams import Pending, Team


class LocalSgd(Periodic):
    """Averages the nodes' parameters every ``period`` steps (Stich 2019).

    Args:
        period: Steps from one average to the next.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "average the nodes' parameters every few steps"

    def __init__(
        self,
        *,
        period: Count = 8,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        self.period = period


class PostLocalSgd(LocalSgd):
    """Synchronous at first, local SGD afterwards (Lin et al. 2020).

    Args:
        period: Steps from one average to the next.
        sync_steps: Steps at the beginning with gradients averaged over all workers.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "average every gradient at first, then parameters every few steps"
    survives = False  # its first steps average gradients over all nodes

    def __init__(
        self,
        *,
        period: Count = 8,
        sync_steps: CountOrZero = 16,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            period=period,
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        self.sync_steps = sync_steps

    @property
    def phase(self) -> str:
        """Synchronous steps are the warm-up."""
        return "warm-up" if self.step <= self.sync_steps else "cycling"

    def schedule(self) -> Schedule:
        """The synchronous steps, and the rest."""
        warm_up = Phase("warm-up", self.sync_steps, period=1)
        return Schedule(phases=(warm_up, Phase("cycling", period=self.period)), main="cycling")

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average over all workers at first, inside the node later."""
        if self.step < self.sync_steps:
            return self.workers.world.all_reduce(bucket, "mean")
        return super().bucket_ready(bucket)

    def lockstep(self) -> Team:
        """All workers while the synchronous steps last."""
        is_synchronous = self.step < self.sync_steps
        return self.workers.world if is_synchronous else super().lockstep()

    def skip_steps(self, num_steps: int) -> None:
        """Periods are counted from the last of the synchronous steps, also from a skipped one."""
        super().skip_steps(num_steps)
        self._last_starts = [start + num_steps for start in self._last_starts]

    def is_due(self, fragment: int) -> bool:
        """Every ``period`` steps, counted from the end of the synchronous ones."""
        if self.step <= self.sync_steps:
            self._last_starts[fragment] = self.step
            self.begin_tally(fragment)
            return False
        return super().is_due(fragment)
