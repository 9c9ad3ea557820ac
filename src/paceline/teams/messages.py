"""Collectives as messages between members: up and down a tree, or round a ring.

A backend's own collectives are hard to beat for large tensors. For small ones the number of
messages behind one another decides: ⌈log₂P⌉ each way in a tree, P-1 in a ring. The order of the
additions depends on the ranks alone, so every run gives the same bits, and all members get the
result from one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from paceline.teams.solo import NothingPending
from paceline.teams.team import (
    Op,
    Pending,
    Team,
    WrappedTeam,
    check_op,
    check_rank,
    told_how,
)

Algorithm = Literal["tree", "ring"]
Run = Callable[[Callable[[], None], torch.device], Pending]

_COMBINE: dict[Op, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.Tensor.add_,
    "mean": torch.Tensor.add_,
    "max": lambda own, other: torch.maximum(own, other, out=own),
    "min": lambda own, other: torch.minimum(own, other, out=own),
}


def run_inline(work: Callable[[], None], device: torch.device) -> Pending:
    """Do it now: on a thread that waits for it anyway."""
    work()
    return NothingPending()


class MessageTeam(WrappedTeam):
    """A team whose all-reduces, reduces and broadcasts are messages of the team behind it.

    They run one after another on a thread of their own, in the order in which they were begun.

    Args:
        team: Carries the messages, and everything else.
        algorithm: ``"tree"`` or ``"ring"``; broadcasts and reduces always take the tree.
        run: Runs a function behind those before it.

    """

    def __init__(self, team: Team, *, algorithm: Algorithm, run: Run) -> None:
        super().__init__(team)
        self._algorithm = algorithm
        self._run = run
        self._last: Pending = NothingPending()

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors: towards the first member and back, or round the ring."""
        check_op(op, tensor.dtype)
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)  # as the backend's teams do, so that a sum cannot overflow
        if self._algorithm == "ring":
            return self._begin("all_reduce", tensor, lambda flat: self._ring(flat, op), op)

        def up_and_down(flat: torch.Tensor) -> None:
            self._tree_reduce(flat, 0, op)
            self._tree_broadcast(flat, 0)

        return self._begin("all_reduce", tensor, up_and_down, op)

    def reduce(self, tensor: torch.Tensor, root: int, op: Op = "sum") -> Pending:
        """Combine the members' tensors for one of them."""
        check_op(op, tensor.dtype)
        check_rank(root, self.size)
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)
        return self._begin(
            "reduce", tensor, lambda flat: self._tree_reduce(flat, root, op), op, f"to {root}"
        )

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor: whoever has it passes it on."""
        check_rank(source, self.size)
        return self._begin(
            "broadcast",
            tensor,
            lambda flat: self._tree_broadcast(flat, source),
            f"from {source}",
        )

    def _begin(
        self,
        kind: str,
        tensor: torch.Tensor,
        work: Callable[[torch.Tensor], None],
        *how: str,
    ) -> Pending:
        if self.size == 1:
            return NothingPending()

        def run() -> None:
            flat = tensor.detach().contiguous().view(-1)
            work(flat)
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.shape))

        def begin() -> Pending:
            self._last = self._run(run, tensor.device)
            return self._last

        # Members that mean another operation would wait for its messages for ever.
        return self.announce(kind, tensor.nbytes, begin, how=told_how(tensor, *how))

    def _tree_reduce(self, flat: torch.Tensor, root: int, op: Op) -> None:
        """Each member adds what those behind it send, nearest first, then sends on."""
        place, distance = (self.rank - root) % self.size, 1
        while distance < self.size:
            if place & distance:
                self._team.send(flat, (self.rank - distance) % self.size).wait()
                return
            if place + distance < self.size:
                other = torch.empty_like(flat)
                self._team.receive(other, (self.rank + distance) % self.size).wait()
                _COMBINE[op](flat, other)
            distance *= 2

    def _tree_broadcast(self, flat: torch.Tensor, source: int) -> None:
        """The same tree the other way: the farthest first, so that the last arrive together."""
        place, distance = (self.rank - source) % self.size, 1
        while distance < self.size and not place & distance:
            distance *= 2
        if place:
            self._team.receive(flat, (self.rank - distance) % self.size).wait()
        while (distance := distance // 2) > 0:
            if place + distance < self.size:
                self._team.send(flat, (self.rank + distance) % self.size).wait()

    def _ring(self, flat: torch.Tensor, op: Op) -> None:
        """Each part goes round once to be combined, and once more to be told to all."""
        size, rank = self.size, self.rank
        parts = list(torch.tensor_split(flat, size))
        after, before = (rank + 1) % size, (rank - 1) % size
        for turn in range(2 * (size - 1)):
            is_sum = turn < size - 1
            sent, got = parts[(rank - turn) % size], parts[(rank - turn - 1) % size]
            target = torch.empty_like(got) if is_sum else got
            self._swap(sent, after, target, before)
            if is_sum:
                _COMBINE[op](got, target)

    def _swap(self, sent: torch.Tensor, after: int, target: torch.Tensor, before: int) -> None:
        # Where the order of calls counts, somebody in the ring must receive first.
        sends_first = self.keeps_order and self.rank % 2 == 0
        pendings = [
            self._team.send(sent, after) if is_sent else self._team.receive(target, before)
            for is_sent in (sends_first, not sends_first)
        ]
        for pending in pendings:
            pending.wait()

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member, behind all collectives that were begun before."""
        self._last.wait()
        return self._team.send(tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive from one member, behind all collectives that were begun before."""
        self._last.wait()
        return self._team.receive(tensor, source)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """As the team behind it."""
        return self._team.reduce_scatter(output, tensor, op)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """As the team behind it."""
        return self._team.all_gather(output, tensor)

    def agree(self, number: float, op: Op = "mean") -> float:
        """As the team behind it."""
        return self._team.agree(number, op)

    def barrier(self) -> None:
        """As the team behind it."""
        self._team.barrier()

    def gather(self, data: bytes) -> list[bytes]:
        """As the team behind it."""
        return self._team.gather(data)


class ChosenTeam(MessageTeam):
    """A team that takes the tree for tensors of at most so many bytes, and the backend above.

    Args:
        team: Carries the messages, and the backend's own collectives.
        run: Runs a function behind those before it.
        most_bytes: The largest tensor for which the tree is faster.

    """

    def __init__(self, team: Team, *, run: Run, most_bytes: int) -> None:
        super().__init__(team, algorithm="tree", run=run)
        self._most_bytes = most_bytes

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """By the tree, if the tensor is small."""
        if tensor.nbytes > self._most_bytes:
            return self._team.all_reduce(tensor, op)
        return super().all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """By the backend, whose broadcast is a tree already."""
        return self._team.broadcast(tensor, source)
