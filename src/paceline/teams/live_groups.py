"""Connections among the nodes that are there: made anew whenever those are others.

The nodes belong to different jobs of torchrun, so these groups are Gloo's own, outside
``torch.distributed``'s default group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
    Store,
)

from paceline.teams.connections import Connections
from paceline.teams.meeting import Guest
from paceline.teams.team import Op, TeamError

_OPS = {"sum": ReduceOp.SUM, "mean": ReduceOp.SUM, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


class LiveGroup:
    """Some workers of the nodes that are there. Every operation blocks."""

    def __init__(
        self,
        store: Store,
        *,
        places: Sequence[int],
        own: int,
        form_s: float,
        timeout_s: float,
    ) -> None:
        self.places = list(places)
        """The members' places among all workers that the job could have, in order."""
        self._rank = self.places.index(own)
        self._timeout = timedelta(seconds=timeout_s)
        # torch's stubs do not say what Gloo's group inherits.
        self._group: Any = None
        if len(self.places) > 1:
            try:
                self._group = ProcessGroupGloo(
                    store, self._rank, len(self.places), timedelta(seconds=form_s)
                )
            except RuntimeError as error:
                raise TeamError(f"could not connect: {error}") from error

    def all_reduce(self, tensor: torch.Tensor, op: Op) -> None:
        """Combine the members' tensors in place."""
        if op == "mean":
            tensor.div_(len(self.places))
        if self._group is None:
            return
        options = AllreduceOptions()
        options.reduceOp, options.timeout = ReduceOp(_OPS[op]), self._timeout
        on_host = tensor.cpu()
        self._wait(self._group.allreduce([on_host], options))
        if on_host is not tensor:
            tensor.copy_(on_host)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give every member the tensor of one; the first one's, if that one is not there."""
        if self._group is None:
            return
        options = BroadcastOptions()
        options.rootRank = self.places.index(source) if source in self.places else 0
        options.timeout = self._timeout
        on_host = tensor.cpu()
        self._wait(self._group.broadcast([on_host], options))
        if on_host is not tensor:
            tensor.copy_(on_host)

    def _wait(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise TeamError(str(error)) from error

    def close(self) -> None:
        """Let go of the group; its connections end with it."""
        self._group = None


class LiveGroups:
    """This worker's groups in one set of nodes: all workers, and its peers on the other nodes."""

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        store_port: int,
        guests: Sequence[Guest],
        first_places: Sequence[int],
        node: int,
        local_rank: int,
        form_s: float,
        timeout_s: float,
    ) -> None:
        self.name = name
        self.replicas = tuple(guest.replica for guest in guests)
        self.nodes = tuple(guest.node for guest in guests)
        self._connections = Connections()
        everybody = [
            first_places[guest.node] + i for guest in guests for i in range(guest.num_workers)
        ]
        peers = [
            first_places[guest.node] + local_rank
            for guest in guests
            if guest.num_workers > local_rank
        ]
        own = first_places[node] + local_rank

        def make(kind: str, places: Sequence[int]) -> LiveGroup:
            prefix = f"paceline/groups/{name}/{kind}"
            return LiveGroup(
                PrefixStore(prefix, store),
                places=places,
                own=own,
                form_s=form_s,
                timeout_s=timeout_s,
            )

        with self._connections.opened_here(but_port=store_port):
            self.world = make("world", everybody)
            self.across = self.world if peers == everybody else make(f"across-{local_rank}", peers)

    def cut(self) -> None:
        """Make what is under way fail, here and where others wait for us."""
        self._connections.cut()

    def close(self) -> None:
        """End the groups; what was under way has ended."""
        self.cut()
        self.world.close()
        self.across.close()
