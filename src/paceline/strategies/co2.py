"""CO2: local steps whose average has a whole period to arrive."""

from __future__ import annotations

from typing import Any

import torch

from paceline.cluster.record import Count, Positive, Share
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Strategy
from paceline.teams import Pending, Team, Workers


class Co2(Strategy):
    """An outer momentum step from an average that is one period old (Sun et al. 2024).

    At the end of each period the nodes' parameters are sent, and the average of those sent a
    period ago is used: communication has as long as ``period`` steps take. All nodes go on from
    the same point.

    Args:
        period: Steps from one outer step to the next.
        outer_lr: The learning rate of the outer steps.
        outer_momentum: The share of the outer momentum that is kept.
        max_norm: The largest norm of the momentum that an outer step follows.

    """

    summary = "outer momentum steps from averages that are one period old"

    def __init__(
        self,
        *,
        period: Count = 8,
        outer_lr: Positive = 0.7,
        outer_momentum: Share = 0.2,
        max_norm: Positive | None = None,
    ) -> None:
        super().__init__()
        self.period = period
        self._outer_lr = outer_lr
        self._outer_momentum = outer_momentum
        self._max_norm = max_norm

    def start(self, replica: Replica, workers: Workers) -> None:
        """All workers are equal; nothing is under way."""
        super().start(replica, workers)
        self._pending: Pending | None = None
        self._num_sent = 0
        self._tally = replica.tally()
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """Begin anew with the parameters of now; the momentum is lost."""
        [self._layouts] = self.replica.fragments(1)
        self._velocities = [torch.zeros_like(layout.pack()) for layout in self._layouts]
        self._averages: list[torch.Tensor] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._starts = [layout.pack() for layout in self._layouts]
        self._starts_before = self._starts

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average the gradients inside the node."""
        node = self.workers.node
        return node.all_reduce(bucket, "mean") if node.size > 1 else None

    def after_step(self) -> None:
        """At the end of a period, send what was trained and use what was sent a period ago."""
        super().after_step()
        if self.workers.num_nodes == 1 or self.step % self.period:
            return
        sent = [layout.pack() for layout in self._layouts]
        self._use_arrived()
        speaker = self._num_sent % self.workers.num_shared_indices
        self._num_sent += 1
        self._averages = sent
        trained = self._take_trained()
        self._pending = self.workers.background.run(
            lambda: self._average(sent, speaker, trained), device=self.replica.device
        )

    def _take_trained(self) -> float | torch.Tensor:
        """What this node has trained on since the last average."""
        trained = self.replica.trained_since(self._tally)
        self._tally = self.replica.tally()
        return trained

    def _use_arrived(self) -> None:
        """v ← μ·v + (x₋₁ - mean₋₁), x ← x₀ - η·v: x₀ began this period, x₋₁ the one before."""
        self._wait_for_pending()
        if self._averages is not None:
            for velocity, start, mean in zip(
                self._velocities, self._starts_before, self._averages, strict=True
            ):
                velocity.mul_(self._outer_momentum).add_(start).sub_(mean)
        scale = self._scale()
        self._starts_before = self._starts
        self._starts = [
            start - self._outer_lr * scale * velocity
            for start, velocity in zip(self._starts, self._velocities, strict=True)
        ]
        for layout, flat in zip(self._layouts, self._starts, strict=True):
            layout.unpack(flat)

    def _scale(self) -> torch.Tensor | float:
        if self._max_norm is None:
            return 1.0
        norms = [torch.linalg.vector_norm(velocity) for velocity in self._velocities]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return self._max_norm / norm.clamp(min=self._max_norm)

    def _wait_for_pending(self) -> None:
        if self._pending is not None:
            self.wait(self._pending)
            self._pending = None

    def _average(
        self, flats: list[torch.Tensor], speaker: int, trained: float | torch.Tensor
    ) -> None:
        """In the background: one worker of each node sums across nodes and tells its node."""
        node, across = self.workers.background.node, self.workers.background.across
        share = node.size / self.workers.world.size
        if isinstance(trained, torch.Tensor) and node.rank == speaker:
            own = node.size * trained.double().reshape(1)
            total = own.clone()
            across.all_reduce(total, "sum").wait()
            share = float((own / total).item())
        for flat in flats:
            if node.rank == speaker:
                flat.mul_(share)
                across.all_reduce(flat, "sum").wait()
            if node.size > 1:
                node.broadcast(flat, speaker).wait()

    def finish(self) -> None:
        """Give all workers the average of what they have now."""
        self._wait_for_pending()
        self._averages = None
        self.make_all_equal(weight=self._take_trained())
        self._begin_anew()

    def schedule(self) -> Schedule:
        """One phase, which repeats itself after a period."""
        return Schedule(phases=(Phase("all", period=self.period),))

    def lockstep(self) -> Team:
        """The node's workers: they step with the same gradients."""
        return self.workers.node

    def state_dict(self) -> dict[str, Any]:
        """Starting points, momentum, and the average under way (which is waited for)."""
        self._wait_for_pending()
        return {
            **super().state_dict(),
            "num_sent": self._num_sent,
            "starts": self._starts,
            "starts_before": self._starts_before,
            "velocities": self._velocities,
            "averages": self._averages,
            "trained": (*self.replica.tally(), self._tally),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._wait_for_pending()
        self._num_sent = state["num_sent"]
        self.replica.num_batches, self.replica.trained, self._tally = state["trained"]

        def copied(flats: list[torch.Tensor]) -> list[torch.Tensor]:
            return [flat.to(self.replica.device, copy=True) for flat in flats]

        self._starts = copied(state["starts"])
        self._starts_before = copied(state["starts_before"])
        self._velocities = copied(state["velocities"])
        self._averages = None if state["averages"] is None else copied(state["averages"])

    def load_averaged(self, state: dict[str, Any]) -> None:
        """Outer steps begin from points that all nodes share."""
        self.load_state_dict(state)
