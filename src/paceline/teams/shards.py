"""Workers of a job whose nodes each hold one model in parts, a part on every worker.

The workers with one local index hold the same part of every node's model. To a strategy they are a
job of their own, with one worker on each node. What all workers must decide alike, such as whether
an exchange has arrived, they still decide together.
"""

from __future__ import annotations

import dataclasses

import torch

from paceline.teams.solo import SoloTeam
from paceline.teams.team import Op, Pending, Team, WrappedTeam
from paceline.teams.workers import Workers


class ShardTeam(WrappedTeam):
    """Tensors travel among those with the same part; numbers are agreed on by more.

    Args:
        team: The workers that hold the same part.
        deciders: All whose decisions must be the same.

    """

    def __init__(self, team: Team, deciders: Team) -> None:
        super().__init__(team)
        self._deciders = deciders

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors."""
        return self._team.all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the tensor of one of them."""
        return self._team.broadcast(tensor, source)

    def reduce(self, tensor: torch.Tensor, root: int, op: Op = "sum") -> Pending:
        """Combine the members' tensors for one of them."""
        return self._team.reduce(tensor, root, op)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each member gets its share."""
        return self._team.reduce_scatter(output, tensor, op)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another."""
        return self._team.all_gather(output, tensor)

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member."""
        return self._team.send(tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive what one member sends."""
        return self._team.receive(tensor, source)

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of everybody who must decide alike."""
        return self._deciders.agree(number, op)

    def barrier(self) -> None:
        """Block until everybody who must decide alike has called this."""
        self._deciders.barrier()

    def gather(self, data: bytes) -> list[bytes]:
        """The members' bytes."""
        return self._team.gather(data)


def workers_of_shards(workers: Workers) -> Workers:
    """The job of those who hold the same part of the model as this worker does.

    Args:
        workers: All workers, as many on each node.

    """
    across, alone = workers.across, SoloTeam()
    return dataclasses.replace(
        workers,
        world=ShardTeam(across, workers.world),
        node=ShardTeam(alone, workers.node),
        across=across,
        background=dataclasses.replace(workers.background, node=alone),
        ranks_by_node=tuple((rank,) for rank in range(workers.num_nodes)),
        # Whoever found the workers closes them.
        _groups=None,
        _teams=(),
    )
