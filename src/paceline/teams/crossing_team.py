"""Teams of workers whose nodes may be lost. Their size stays; who is absent adds nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch

from paceline.teams.crossing import Crossing
from paceline.teams.solo import NothingPending
from paceline.teams.team import Op, Pending, Team

_HERE = b"+"
_NO_MESSAGES = "workers that may be lost do not send each other messages; use a collective"


class Group(Protocol):
    """Members that are there; every operation blocks. Members are named by their places."""

    def all_reduce(self, tensor: torch.Tensor, op: Op) -> None:
        """Combine the members' tensors in place."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give every member the tensor of one."""


class _SlotTeam(Team):
    """A place for every worker that the job could have."""

    def __init__(self, places: list[int], rank: int) -> None:
        self._places = places
        self._rank = rank
        self._bytes_handed = 0

    @abstractmethod
    def _do(self, kind: str, work: Callable[[Group], None], *changed: torch.Tensor) -> Pending:
        """Do something with the members that are there."""

    @property
    def size(self) -> int:
        """The number of places."""
        return len(self._places)

    @property
    def rank(self) -> int:
        """This worker's place."""
        return self._rank

    @property
    def bytes_handed(self) -> int:
        """Bytes of tensors handed over so far; once, however often they travelled."""
        return self._bytes_handed

    @property
    def keeps_order(self) -> bool:
        """There are no messages."""
        return False

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the tensors of the members that are there."""
        self._bytes_handed += tensor.nbytes
        return self._do("all_reduce", lambda group: group.all_reduce(tensor, op), tensor)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor, or the first one's that is there."""
        self._bytes_handed += tensor.nbytes
        place = self._places[source]
        return self._do("broadcast", lambda group: group.broadcast(tensor, place), tensor)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each gets its share."""
        self._bytes_handed += tensor.nbytes

        def work(group: Group) -> None:
            group.all_reduce(tensor, op)
            output.copy_(tensor.view(self.size, -1)[self._rank].view(output.shape))

        return self._do("reduce_scatter", work, tensor)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another; zeros for those that are not there."""
        self._bytes_handed += tensor.nbytes

        def work(group: Group) -> None:
            output.zero_()
            output.view(self.size, -1)[self._rank].copy_(tensor.reshape(-1))
            group.all_reduce(output, "sum")

        return self._do("all_gather", work)

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Refuse."""
        raise ValueError(_NO_MESSAGES)

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Refuse."""
        raise ValueError(_NO_MESSAGES)

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member that is there."""
        value = torch.tensor([number], dtype=torch.float64)
        self.all_reduce(value, op).wait()
        return float(value.item())

    def barrier(self) -> None:
        """Block until all members that are there have called this."""
        self.agree(0.0, "max")

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes; none for those that are not there."""
        # One may be lost between the lengths and the bytes, and then has a length and zeros.
        told = _HERE + data
        lengths = torch.zeros(self.size, dtype=torch.int64)
        self.all_gather(lengths, torch.tensor([len(told)])).wait()
        longest = int(lengths.max().item())
        padded = torch.frombuffer(bytearray(told.ljust(longest, b"\0")), dtype=torch.uint8)
        gathered = torch.empty(self.size * longest, dtype=torch.uint8)
        self.all_gather(gathered, padded).wait()
        rows = gathered.view(self.size, longest)
        everybody = [
            row[:length].numpy().tobytes()
            for row, length in zip(rows, lengths.tolist(), strict=True)
        ]
        return [each.removeprefix(_HERE) if each.startswith(_HERE) else b"" for each in everybody]


class LiveTeam(_SlotTeam):
    """For what runs inside a crossing: each operation blocks, and fails if a node is lost."""

    def __init__(self, crossing: Crossing, places: list[int], rank: int) -> None:
        super().__init__(places, rank)
        self._crossing = crossing

    def _do(self, kind: str, work: Callable[[Group], None], *changed: torch.Tensor) -> Pending:
        work(self._crossing.groups.across)
        return NothingPending()


class CrossingTeam(_SlotTeam):
    """For the training: each operation is a crossing, done again if a node is lost meanwhile.

    Until this node is let in, its members are the workers of this node.
    """

    def __init__(
        self,
        crossing: Crossing,
        places: list[int],
        rank: int,
        *,
        choose: Callable[[Crossing], Group],
        run: Callable[[Callable[[], None], str, torch.device], Pending],
        node: Group,
    ) -> None:
        super().__init__(places, rank)
        self._crossing = crossing
        self._choose = choose
        self._run = run
        self._node = node

    def _do(self, kind: str, work: Callable[[Group], None], *changed: torch.Tensor) -> Pending:
        if self._crossing.is_new:
            work(self._node)
            return NothingPending()
        before = [tensor.clone() for tensor in changed]

        def again() -> None:
            for tensor, values in zip(changed, before, strict=True):
                tensor.copy_(values)
            work(self._choose(self._crossing))

        return self._run(again, kind, torch.device("cpu"))
