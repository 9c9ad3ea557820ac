"""Teams whose members may be lost between two operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from paceline.teams.crossing_team import Group, _SlotTeam
from paceline.teams.solo import NothingPending
from paceline.teams.team import Op, Pending


class Other:
    """A group of two, in which another worker hands over these values, one after another."""

    def __init__(self, values: Iterator[torch.Tensor]) -> None:
        self._values = values

    def all_reduce(self, tensor: torch.Tensor, op: Op) -> None:
        assert op == "sum"
        tensor += next(self._values).to(tensor.dtype)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        raise NotImplementedError


class Team(_SlotTeam):
    """This worker is the first of two."""

    def __init__(self, *values: torch.Tensor) -> None:
        super().__init__([0, 1], 0)
        self._group = Other(iter(values))

    def _do(self, kind: str, work: Callable[[Group], None], *changed: torch.Tensor) -> Pending:
        work(self._group)
        return NothingPending()


def test_a_worker_that_is_lost_while_bytes_are_gathered_has_none() -> None:
    assert Team(torch.tensor([0, 4]), torch.zeros(8)).gather(b"abc") == [b"abc", b""]
    assert Team(torch.zeros(2), torch.zeros(8)).gather(b"abc") == [b"abc", b""]
    assert Team(torch.zeros(2), torch.zeros(2)).gather(b"") == [b"", b""]
    told = torch.tensor([0, 0, 0, 0, *b"+xy", 0])
    assert Team(torch.tensor([0, 3]), told).gather(b"abc") == [b"abc", b"xy"]
