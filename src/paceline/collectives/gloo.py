"""Gloo as torch uses it: what it does, read from its source and measured in the lab.

- all-reduce: a ring at every size. torch leaves the algorithm unspecified, and Gloo then takes the
  ring, in which each worker's part goes in at least two segments of at most 1 MiB
  (pytorch/gloo, gloo/allreduce.cc and allreduce.h; torch's ProcessGroupGloo.cpp).
- all-gather: a ring (gloo/allgather.cc). Broadcast: a binomial tree (gloo/broadcast.cc).
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
        topology.num_nodes,
        topology.workers_per_node,
        topology.inside,
        topology.across.between,
    )


def reduce_scatter_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """A ring. An all-gather costs the same."""
    return formulas.reduce_scatter_s(num_bytes, topology.num_workers, ring_route(topology))


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
