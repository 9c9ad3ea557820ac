"""Synchronous training: every gradient is averaged over all workers before it is used."""

from __future__ import annotations

import torch

from paceline.cluster.record import Count
from paceline.strategies.buffers import settle_buffers, start_buffers
from paceline.strategies.replica import Replica
from paceline.strategies.strategy import BUCKET_BYTES, Strategy
from paceline.teams import Pending, Team, Workers


class Sync(Strategy):
    """Averages each bucket of gradients over all workers as soon as it is complete.

    Args:
        bucket_bytes: About how many bytes of gradients travel together. Large buckets use the link
            better, small ones begin to travel earlier.

    """

    takes_shards = True
    summary = "average every gradient over all workers, as torch's DDP does"

    def __init__(self, *, bucket_bytes: Count = BUCKET_BYTES) -> None:
        super().__init__()
        self.bucket_bytes = bucket_bytes

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average over all workers."""
        world = self.workers.world
        return world.all_reduce(bucket, "mean") if world.size > 1 else None

    def gradients_ready(self) -> None:
        """Average the buffers as well; the forward pass has changed them."""
        if self.workers.world.size == 1:
            return
        for pending, unpack in start_buffers(self.replica, self.workers.world):
            self.wait(pending)
            unpack()

    def lockstep(self) -> Team:
        """All workers: they step with the same gradients."""
        return self.workers.world

    def finish(self) -> None:
        """Equal gradients keep equal parameters equal; the buffers are left."""
        settle_buffers(self.replica, self.workers.world)


class SyncHierarchical(Sync):
    """Averages in three steps: inside the node, across nodes, inside the node again.

    Where all nodes have the same number of workers, a reduce-scatter leaves each worker with the
    node's sum of its own share; it averages that share with its peers on the other nodes, and an
    all-gather puts the shares together. Otherwise the first worker of each node carries all.

    Args:
        bucket_bytes: About how many bytes of gradients travel together. Large buckets use the link
            better, small ones begin to travel earlier.

    """

    summary = "average every gradient, first inside each node, then across nodes"

    def start(self, replica: Replica, workers: Workers) -> None:
        """Find out whether the nodes are equal."""
        super().start(replica, workers)
        self._are_nodes_equal = len(set(workers.node_sizes)) == 1

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average over all workers, in the background: each step needs the one before."""
        bucket.div_(self.workers.world.size)
        return self.workers.background.run(lambda: self._sum(bucket), device=bucket.device)

    def _sum(self, bucket: torch.Tensor) -> None:
        node, across = self.workers.background.node, self.workers.background.across
        if self.workers.num_nodes == 1:
            node.all_reduce(bucket, "sum").wait()
        elif self._are_nodes_equal:
            missing = -bucket.numel() % node.size
            shares = torch.nn.functional.pad(bucket, (0, missing)) if missing else bucket
            own = shares.new_empty(shares.numel() // node.size)
            node.reduce_scatter(own, shares, "sum").wait()
            across.all_reduce(own, "sum").wait()
            node.all_gather(shares, own).wait()
            if missing:
                bucket.copy_(shares[: bucket.numel()])
        else:
            node.all_reduce(bucket, "sum").wait()
            if node.rank == 0:
                across.all_reduce(bucket, "sum").wait()
            node.broadcast(bucket, 0).wait()
