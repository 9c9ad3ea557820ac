"""The shares of all workers, now and for batches that loaders fetch ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from paceline.teams import Pending
from paceline.train.loading.balance import Balance
from paceline.train.loading.host import Host
from paceline.train.loading.room import Room
from paceline.train.loading.shares import share_batch
from paceline.train.loading.stopwatch import Stopwatch

ShareMode = Literal["measured", "equal"]

CHECK_EVERY = 8
"""Batches between two looks at the workers' speeds."""


class Sharing:
    """Which speeds hold from which batch on.

    Every few batches all workers tell what a sample costs them, and each comes to the same decision
    (:class:`Balance`). It holds from a batch on that nobody has begun to fetch. Batches are
    numbered from the loader's first, over all epochs.

    Args:
        host: The training.
        batch_size: The usual global batch, in samples or in their sizes.
        limits: The most of it that each worker may have; None for no limit.
        speeds: Of each worker, where they are given; None measures them.
        least: The smallest share but 0.
        num_ahead: How many batches this worker fetches ahead.

    """

    def __init__(
        self,
        host: Host,
        *,
        batch_size: int,
        limits: Sequence[int | None],
        speeds: Sequence[float] | None,
        least: int,
        num_ahead: int,
    ) -> None:
        self._num_ahead = num_ahead
        self._host = host
        self._team = host.workers.world
        self._batch_size = batch_size
        self._given_limits = list(limits)
        self._limits = list(limits)
        self._least = least
        self._balance = Balance(self._team.size)
        if speeds is not None:
            self._balance.speeds = list(speeds)
        self._is_measured = speeds is None and self._team.size > 1
        self._plan = [(0, list(self._balance.speeds))]
        self._asked: tuple[torch.Tensor, Pending] | None = None
        self.stopwatch = Stopwatch(host.device, host.workers.clock, host.waited_s)
        self.room = Room(host.device)

    @property
    def limits(self) -> Sequence[int | None]:
        """The most that each worker may have, as it was given."""
        return self._given_limits

    def speeds(self, number: int) -> Sequence[float]:
        """By which a batch is shared."""
        return next(speeds for first, speeds in reversed(self._plan) if first <= number)

    def shares(self, number: int, batch_size: int) -> tuple[int, ...]:
        """How many samples of a batch each worker has."""
        return share_batch(
            batch_size, self.speeds(number), limits=self._given_limits, least=self._least
        )

    def begin_pass(self) -> None:
        """Batches are taken from now on: let the ends of backward passes be told."""
        if self._is_measured:
            self._host.when_computed.append(self.stopwatch.stop)

    def end_pass(self) -> None:
        """No more batches are taken."""
        self.stopwatch.cancel()
        if self._is_measured:
            self._host.when_computed.remove(self.stopwatch.stop)

    def look(self, number: int) -> None:
        """Batch ``number`` is asked for next: is it time to look? All workers call it."""
        if not self._is_measured or number == 0 or number % CHECK_EVERY:
            return
        if self._asked is not None:
            self._decide(number)
        self._ask()
        if self._host.is_in_lockstep():
            self._decide(number)

    def settle(self) -> None:
        """Wait for what is under way; it still counts, if more batches follow."""
        if self._asked is not None:
            self._asked[1].wait()

    def forget_question(self) -> None:
        """Wait for what is under way: it would be answered at another batch than asked."""
        if self._asked is not None:
            self._asked[1].wait()
            self._asked = None

    def _ask(self) -> None:
        cost, most = self.stopwatch.take(), self.room.most()
        told = [-1.0 if cost is None else cost, self._num_ahead, -1.0 if most is None else most]
        own = torch.tensor(told, dtype=torch.float64, device=self._host.device)
        answers = own.new_empty(self._team.size * len(told))
        pending = self._team.all_gather(answers, own)
        pending.done()  # asked once, so that a run that ends without the answer is no mistake
        self._asked = (answers, pending)

    def _decide(self, number: int) -> None:
        """Take in what all have told; changes hold from a batch on that nobody has fetched."""
        assert self._asked is not None
        answers, pending = self._asked
        self._asked = None
        pending.wait()
        told = answers.view(self._team.size, -1).tolist()
        if any(cost < 0 for cost, _, _ in told):
            return  # somebody has trained on nothing since
        self._limits = [
            _tighter(given, None if most < 0 else int(most))
            for given, (_, _, most) in zip(self._given_limits, told, strict=True)
        ]
        if self._balance.update([cost for cost, _, _ in told], self._shares_by):
            first = number + int(max(num_ahead for _, num_ahead, _ in told))
            now = max(begin for begin, _ in self._plan if begin <= number)
            still = [entry for entry in self._plan if now <= entry[0] < first]
            self._plan = [*still, (first, self._capped(self._balance.speeds))]

    def _shares_by(self, speeds: Sequence[float]) -> Sequence[float]:
        shares = share_batch(
            self._batch_size, self._capped(speeds), limits=self._given_limits, least=self._least
        )
        # A worker without a share computes on the smallest batch, which does not count.
        return [share or self._least for share in shares]

    def _capped(self, speeds: Sequence[float]) -> list[float]:
        """Speeds whose shares respect the memory that was measured, if there is enough of it."""
        try:
            shares = share_batch(self._batch_size, speeds, limits=self._limits, least=self._least)
        except ValueError:
            return list(speeds)
        return list(speeds) if self._limits == self._given_limits else [float(s) for s in shares]

    def state_dict(self) -> dict[str, Any]:
        """Speeds, and what was decided for batches to come."""
        return {
            "balance": self._balance.state_dict(),
            "plan": [[first, list(speeds)] for first, speeds in self._plan],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Speeds that are given stay as they are, and another number of workers begins anew.
        """
        self.forget_question()
        if not self._is_measured:
            return
        plan = [(int(first), list(speeds)) for first, speeds in state["plan"]]
        if len(plan[-1][1]) == self._team.size:
            self._balance.load_state_dict(state["balance"])
            self._plan = plan

    def follow(self, state: Mapping[str, Any]) -> None:
        """Begin with the speeds that another loader had last, instead of measuring them anew."""
        first = [[0, state["plan"][-1][1]]]
        self.load_state_dict({**state, "plan": first})


def _tighter(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
