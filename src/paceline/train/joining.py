"""Workers with unequal numbers of batches: those that run out stand by until all have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch.optim import Optimizer

from paceline.strategies import Strategy
from paceline.strategies.equality import take_over
from paceline.train.levelling import level_after_join

Moment = Literal["backward", "step", "report", "weigh"]

_DOING = {
    "backward": "averages gradients",
    "step": "has ended a step",
    "report": "reports a metric",
    "weigh": "weighs its first batch",
}


class Joining:
    """What all workers are about to do, told before each moment at which they meet."""

    def __init__(self, strategy: Strategy, optimizers: Sequence[Optimizer]) -> None:
        self._strategy = strategy
        self._replica = strategy.replica
        self._optimizers = optimizers
        self._workers = workers = strategy.workers
        self._turn = 0
        self._last_turns = [0] * workers.world.size
        self.active = list(range(workers.world.size))
        """Workers that still had data at the last moment, by rank."""

    @property
    def are_all_active(self) -> bool:
        """Whether nobody had run out at the last moment."""
        return len(self.active) == self._workers.world.size

    @property
    def is_active(self) -> bool:
        """Whether this worker still had data at the last moment."""
        return self._workers.world.rank in self.active

    def tell(self, moment: Moment | None) -> Moment | None:
        """Say what this worker is about to do (nothing: it has run out); what the others are."""
        said = [part.decode() for part in self._workers.world.gather((moment or "").encode())]
        self.active = [rank for rank, each in enumerate(said) if each]
        self._turn += 1
        for rank in self.active:
            self._last_turns[rank] = self._turn
        if not self.active:
            return None
        first = self.active[0]
        for rank in self.active:
            if said[rank] != said[first]:
                raise RuntimeError(
                    f"worker {rank} {_DOING[said[rank]]} while worker {first} "
                    f"{_DOING[said[first]]}; inside join() all workers must run the same loop"
                )
        return said[first]  # type: ignore[return-value]

    def mean(self, metric: float, weight: float | None = None) -> float:
        """The average of a metric over the workers that have data, weighted as their batches are.

        Args:
            metric: This worker's; if it stands by, it does not count.
            weight: What this worker's batch counts; None: all count alike.

        """
        world = self._workers.world
        own = (1.0 if weight is None else weight) if self.is_active else 0.0
        total = world.agree(own, "sum")
        if not total:  # all have batches that count nothing
            own, total = float(self.is_active), len(self.active)
        # What counts nothing may not be finite.
        return world.agree(metric * own if own else 0.0, "sum") / total

    def share_in_node(self) -> None:
        """Give those that stand by their node's parameters: one may carry the next exchange."""
        if self._strategy.lockstep() is None:
            return
        ranks = self._workers.ranks_by_node[self._workers.node_index]
        active = [place for place, rank in enumerate(ranks) if rank in self.active]
        if 0 < len(active) < len(ranks):
            take_over(self._replica.tensors().values(), self._workers.node, active[0])

    def level(self) -> None:
        """Workers in lockstep continue from the one that had data the longest."""
        team = self._strategy.lockstep()
        if team is None:
            return
        is_world = team is self._workers.world
        ranks = (
            range(team.size) if is_world else self._workers.ranks_by_node[self._workers.node_index]
        )
        source = self._last_of(ranks)
        if source is not None:
            level_after_join(self._replica, self._optimizers, team, source)

    def _last_of(self, ranks: Sequence[int]) -> int | None:
        """Of these workers, the first that had data the longest; None if all ended together."""
        turns = [self._last_turns[rank] for rank in ranks]
        return None if len(set(turns)) == 1 else turns.index(max(turns))
