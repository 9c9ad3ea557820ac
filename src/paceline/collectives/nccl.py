"""NCCL's choice of algorithm and protocol, after its own published tuning model.

NCCL estimates latency + bytes / bandwidth for every algorithm and protocol and takes the least.
The constants are those of NVIDIA/nccl, src/graph/tuning.cc (version 2.20, commit b6475625): base
latencies, latencies per hop, the share of the bandwidth that each protocol gets, and the
correction for trees of medium sizes.

A link's ``latency_s`` is assumed to be one hop of a ring in the Simple protocol (3.4 us over
NVLink, 14 us over a network in the built-in clusters); the other hops are relative to that one.
Left out: limits per channel, since a cluster's file does not say how many channels there are, and
algorithms that need a switch which adds up (NVLS, CollNet).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import numpy as np

from paceline.collectives import formulas
from paceline.collectives.topology import Numbers, Route, Topology

NcclAlgorithm = Literal["ring", "tree"]
ALGORITHMS: tuple[NcclAlgorithm, ...] = ("ring", "tree")


@dataclass(frozen=True, kw_only=True)
class _Way:
    """An algorithm in a protocol. LL and LL128 send flags with the data; Simple waits instead."""

    name: str
    algorithm: NcclAlgorithm
    base_s: float
    # relative to the hop of the Simple ring: 3.4 us inside a node, 14 us between nodes
    inside_hop: float
    between_hop: float
    # of the links' bandwidth, on one node and on several
    share: tuple[float, float]
    # of its share, for 64 bytes, 128 bytes, … 256 MB; larger messages get all of it
    correction: tuple[float, ...] = (1.0,)


# fmt: off
_WAYS = (
    _Way(name="ring/LL", algorithm="ring", base_s=6.6e-6, inside_hop=0.6 / 3.4,
         between_hop=2.7 / 14, share=(1 / 4, 1 / 4)),
    _Way(name="ring/LL128", algorithm="ring", base_s=14e-6, inside_hop=1.9 / 3.4,
         between_hop=4.0 / 14, share=(0.92, 0.92)),
    # Several nodes: the ring's "plateau effect", which NCCL accounts for with 1.4 times the hops.
    _Way(name="ring/Simple", algorithm="ring", base_s=8.4e-6, inside_hop=1.0,
         between_hop=1.4, share=(1.0, 1.0)),
    _Way(name="tree/LL", algorithm="tree", base_s=6.8e-6, inside_hop=0.6 / 3.4,
         between_hop=5.0 / 14, share=(0.92 / 3.8, 0.92 / 3.8),
         correction=(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5,
                     0.6, 0.7, 0.8, 0.9, 1.0)),
    _Way(name="tree/LL128", algorithm="tree", base_s=14e-6, inside_hop=1.25 / 3.4,
         between_hop=8.5 / 14, share=(0.92 * 7 / 9, 0.92 * 120 / 128),
         correction=(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6,
                     0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0)),
    _Way(name="tree/Simple", algorithm="tree", base_s=0.0, inside_hop=28 / 3.4,
         between_hop=28 / 14, share=(0.92, 0.92),
         correction=(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5,
                     0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0)),
)
# fmt: on


def all_reduce_s(
    num_bytes: Numbers, topology: Topology, algorithms: Sequence[NcclAlgorithm] = ALGORITHMS
) -> Numbers:
    """The least estimate over the given algorithms and all protocols."""
    estimates = {"ring": _ring_s, "tree": _tree_s}
    return _least(
        estimates[way.algorithm](num_bytes, topology, way)
        for way in _WAYS
        if way.algorithm in algorithms
    )


def hierarchical_all_reduce_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """Three calls; those inside a node are left out where it has one worker, and so on."""
    no_inside = np.equal(topology.workers_per_node, 1)
    no_across = np.equal(topology.num_nodes, 1)

    def inside_s(size: Numbers) -> Numbers:
        return np.where(no_inside, 0.0, reduce_scatter_s(size, topology.node))

    return formulas.hierarchical_all_reduce_s(
        num_bytes,
        topology.workers_per_node,
        reduce_scatter_s=inside_s,
        across_s=lambda size: np.where(no_across, 0.0, all_reduce_s(size, topology.across)),
        all_gather_s=inside_s,
    )


def reduce_scatter_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """P−1 hops round a ring. An all-gather costs the same."""
    return _once_round_s(formulas.reduce_scatter_s, num_bytes, topology)


def broadcast_s(num_bytes: Numbers, topology: Topology) -> Numbers:
    """P−1 hops along a ring, pipelined."""
    return _once_round_s(formulas.chain_broadcast_s, num_bytes, topology)


def _once_round_s(
    formula: Callable[[Numbers, Numbers, Route], Numbers], num_bytes: Numbers, topology: Topology
) -> Numbers:
    return _least(
        _ring_latency_s(topology, way, rounds=1)
        + formula(num_bytes, topology.num_workers, _bus(topology, way))
        for way in _WAYS
        if way.algorithm == "ring"
    )


def _ring_s(num_bytes: Numbers, topology: Topology, way: _Way) -> Numbers:
    # Two limits with their own formulas: what the links carry and what the devices pass on.
    links = _bus(replace(topology, copy_bandwidth_bytes_per_s=np.inf), way)
    links_s = formulas.ring_all_reduce_s(num_bytes, topology.num_workers, links)
    devices_s = formulas.copied_ring_all_reduce_s(
        num_bytes,
        topology.num_workers,
        topology.copy_bandwidth_bytes_per_s * _share(topology, way),
    )
    return _ring_latency_s(topology, way, rounds=2) + np.maximum(links_s, devices_s)


def _tree_s(num_bytes: Numbers, topology: Topology, way: _Way) -> Numbers:
    """A chain in every node, and a double binary tree over the nodes."""
    hops_s = (topology.workers_per_node - 1) * way.inside_hop * topology.inside.latency_s
    hops_s = hops_s + (
        np.ceil(np.log2(topology.num_nodes)) * way.between_hop * topology.between.latency_s
    )
    size = np.floor(np.log2(np.maximum(num_bytes, 64) / 64)).astype(int)
    correction = np.asarray(way.correction)[np.minimum(size, len(way.correction) - 1)]
    bus = _bus(topology, way).times(correction)
    transfer_s = formulas.tree_all_reduce_s(num_bytes, topology.num_workers, bus)
    return way.base_s + 2 * hops_s + transfer_s


def _ring_latency_s(topology: Topology, way: _Way, *, rounds: int) -> Numbers:
    between = topology.num_nodes - 1
    inside = topology.num_workers - 1 - between
    inside_s = inside * way.inside_hop * topology.inside.latency_s
    between_s = between * way.between_hop * topology.between.latency_s
    return way.base_s + rounds * (inside_s + between_s)


def _bus(topology: Topology, way: _Way) -> Route:
    """The bandwidth of a ring or a tree through all workers; its latency is counted elsewhere."""
    inside, between = topology.inside, topology.node_between
    # Rings and trees enter and leave a node once, through all of its cards together. A node of one
    # worker has no inside to pass.
    inside_rate = np.where(
        np.equal(topology.workers_per_node, 1), np.inf, inside.bandwidth_bytes_per_s
    )
    between_rate = np.where(np.equal(topology.num_nodes, 1), np.inf, between.bandwidth_bytes_per_s)
    rate = np.minimum(np.minimum(inside_rate, between_rate), topology.copy_bandwidth_bytes_per_s)
    return Route(
        latency_s=0.0,
        bandwidth_bytes_per_s=rate * _share(topology, way),
        half_bytes=np.where(inside_rate < between_rate, inside.half_bytes, between.half_bytes),
    )


def _share(topology: Topology, way: _Way) -> Numbers:
    return np.where(np.equal(topology.num_nodes, 1), *way.share)


def _least(estimates: Iterable[Numbers]) -> Numbers:
    return reduce(np.minimum, estimates)
