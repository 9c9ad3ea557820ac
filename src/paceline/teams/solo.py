"""A team of one: nothing is communicated, and no process group is needed."""

from __future__ import annotations

import socket

import torch

from paceline.teams.background import Background
from paceline.teams.team import Op, Pending, Team
from paceline.teams.workers import Workers


class NothingPending(Pending):
    """What was done at once."""

    def wait(self) -> None:
        """Return at once."""

    def done(self) -> bool:
        """It is."""
        return True


class SoloTeam(Team):
    """A team whose only member is this worker."""

    @property
    def size(self) -> int:
        """One."""
        return 1

    @property
    def rank(self) -> int:
        """The first."""
        return 0

    @property
    def bytes_handed(self) -> int:
        """Nothing is ever handed over."""
        return 0

    @property
    def keeps_order(self) -> bool:
        """There are no messages."""
        return False

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Leave the tensor as it is."""
        return NothingPending()

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Leave the tensor as it is."""
        return NothingPending()

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Copy the tensor, all of which is this worker's share."""
        output.copy_(tensor)
        return NothingPending()

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Copy the tensor."""
        output.copy_(tensor)
        return NothingPending()

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Refuse."""
        raise ValueError("a team of one worker has nobody to send to")

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Refuse."""
        raise ValueError("a team of one worker has nobody to receive from")

    def agree(self, number: float, op: Op = "mean") -> float:
        """Return the number."""
        return number

    def barrier(self) -> None:
        """Return at once."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return this worker's bytes."""
        return [data]


def solo_workers() -> Workers:
    """The workers of a job of one, as that one sees them."""
    team = SoloTeam()
    return Workers(
        world=team,
        node=team,
        across=team,
        background=Background(node=team, across=team),
        ranks_by_node=((0,),),
        node_names=(f"node 0 ({socket.gethostname()})",),
    )
