"""Gloo as torch uses it: what it does, read from its source and measured in the lab.

- all-reduce: a ring at every size. torch leaves the algorithm unspecified, and Gloo then takes the
  ring, in which each worker's part goes in at least two segments of at most 1 MiB
  (pytorch/gloo, gloo/allreduce.cc and allreduce.h; torch's ProcessGroupGloo.cpp).
- all-gather: a ring (gloo/allgather.cc). Broadcast: a binomial tree in which a worker sends to all
  of its children at once (gloo/broadcast.cc). Measured in the lab over links of rate B: 2.0 n/B for
  three workers and 2.9 n/B for four.
- reduce-scatter: measured to take what an all-reduce takes (1.36 against 1.37 n/B for three
  workers, 1.57 against 1.57 for four).
- Its ring follows the ranks, one flow after another through every node: a node's card carries one
  flow out and one in, at a time.
"""

from __future__ import annotations

import numpy as np

from paceline.collectives import formulas
from paceline.collectives.topology import Numbers, Route, Topology


def all_reduce_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """A ring, as fast as its slowest link."""
    return formulas.ring_all_reduce_s(num_bytes, topology.num_workers, ring_route(topology))


def hierarchical_all_reduce_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """In the node, across, and in the node again; the all-reduces across go at the same time."""
    return formulas.hierarchical_all_reduce_s(
        num_bytes,
        topology.workers_per_node,
        reduce_scatter_s=lambda size: reduce_scatter_s(size, topology.node),
        across_s=lambda size: all_reduce_s(size, topology.across),
        all_gather_s=lambda size: all_gather_s(size, topology.node),
    )


def reduce_scatter_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """What an all-reduce takes: torch all-reduces, and each worker then keeps its part."""
    return all_reduce_s(num_bytes, topology)


def all_gather_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """A ring, as fast as its slowest link."""
    return formulas.all_gather_s(num_bytes, topology.num_workers, ring_route(topology))


def broadcast_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """A binomial tree: first inside the source's node, then all its workers send to other nodes."""
    inside_s = formulas.binomial_broadcast_s(num_bytes, topology.workers_per_node, topology.inside)
    return inside_s + formulas.binomial_broadcast_s(
        num_bytes, topology.num_nodes, topology.across.between
    )


def ring_route(topology: Topology) -> Route:
    """The slowest link of a ring through all workers: between nodes, if there are several."""
    alone = np.equal(topology.num_nodes, 1)
    inside, between = topology.inside, topology.between
    return Route(
        latency_s=np.where(alone, inside.latency_s, between.latency_s),
        bandwidth_bytes_per_s=np.where(
            alone, inside.bandwidth_bytes_per_s, between.bandwidth_bytes_per_s
        ),
        half_bytes=np.where(alone, inside.half_bytes, between.half_bytes),
    )
