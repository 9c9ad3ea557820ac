"""NCCL: rings, trees and switches that add up, each in the protocols it can be run in.

NCCL takes the algorithm and the protocol that it expects to be fastest; so does this model. Its
constants are not NCCL's own estimates (NVIDIA/nccl, src/graph/tuning.cc) but what nccl-tests
measured: inside a node on A100, H100, B200 and L40S, 2 to 8 GPUs, 512 B to 512 MiB; between 2 to 32
nodes over InfiniBand, RoCE, EFA and GPUDirect-TCPXO, 8 B to 16 GiB (benchmarks/nccl_tables.py,
docs/evidence/collectives.md). What differs from cluster to cluster is in its description: a link's
latency, bandwidth and efficiency, what it takes to start, and whether the switch adds up (NVLink
SHARP).

Left out: limits per channel, CollNet, and buffers that are registered with the switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import numpy as np

from paceline.collectives import formulas
from paceline.collectives.topology import Numbers, Route, Topology

NcclAlgorithm = Literal["ring", "tree", "switch"]
ALGORITHMS: tuple[NcclAlgorithm, ...] = ("ring", "tree", "switch")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How data and "it is there" travel. LL and LL128 send flags with the data; Simple waits."""

    start_s: float
    """On top of what starting a collective takes."""
    hop_s: float
    """On top of the latency of a link inside a node."""
    share: float
    """Of the bandwidth."""
    windowed: bool
    """Whether only so much may be under way, and pieces are too small to wait for."""
    between_hop_s: float = 0.0
    """On top of the latency of a link between nodes."""
    most_between_bytes_per_s: float = np.inf
    """What a node sends to others at most, whatever its cards carry."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What holds on every system; ``benchmarks/nccl_tables.py`` fits it."""

    ll: Protocol = Protocol(
        start_s=0.0, hop_s=0.0, share=0.41, windowed=True, most_between_bytes_per_s=1.85e9
    )
    ll128: Protocol = Protocol(start_s=10.7e-6, hop_s=0.0, share=0.75, windowed=True)
    simple: Protocol = Protocol(
        start_s=6.8e-6, hop_s=1.9e-6, share=1.0, windowed=False, between_hop_s=4e-6
    )
    window_bytes: float = 0.65e6
    """What may be under way between nodes in LL and LL128: a round trip later they may go on."""
    fill_s: float = 1.3e-6
    """Filling and draining the pipeline inside a node costs √(σ·t) of a transfer that takes t: what
    the best number of pieces leaves over."""
    full_pieces_s: float = 0.56e-3
    """Pieces of transfers that take longer have their full size, inside a node."""
    fill_between_s: float = 7.3e-6
    fill_between_hops: float = 8.0
    """σ of each level of a tree over the nodes: a time, and so many latencies of the link. With h
    hops σ is 4·h·α; a level is passed on the way up and on the way down."""
    own_pass: float = 0.5
    """What a reduce-scatter or an all-gather adds to its P−1 passes, in passes: the first or the
    last touches only the worker's own memory. (Counting accesses as for all-reduces gives 2/3.)"""
    switch_start_s: float = 79e-6
    """All workers set up the switch's part together; nothing is passed from one to the next."""

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """All of them."""
        return (self.ll, self.ll128, self.simple)


MEASURED = Constants()
# Fewer gain nothing from a switch that adds up, and NCCL leaves them to rings.
_LEAST_ON_SWITCH = 3


def all_reduce_s(
    num_bytes: Numbers,
    topology: Topology,
    algorithms: Sequence[NcclAlgorithm] = ALGORITHMS,
    constants: Constants = MEASURED,
) -> Numbers:
    """The least over the given algorithms and all protocols."""
    seconds = {"ring": _ring_s, "tree": _tree_s}
    ways = [
        seconds[name](num_bytes, topology, protocol, constants)
        for name in algorithms
        if name in seconds
        for protocol in constants.protocols
    ]
    if "switch" in algorithms and np.any(topology.switch_bandwidth_bytes_per_s):
        ways.append(_switch_s(num_bytes, topology, constants))
    return _least(ways)


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


def reduce_scatter_s(
    num_bytes: Numbers, topology: Topology, constants: Constants = MEASURED
) -> Numbers:
    """P−1 hops round a ring. An all-gather costs the same."""
    num_workers = topology.num_workers

    def way_s(protocol: Protocol) -> Numbers:
        passes = num_workers - 1 + constants.own_pass
        devices_s = passes * num_bytes / num_workers / (_copy_rate(topology) * protocol.share)
        links_s = formulas.reduce_scatter_s(
            num_bytes, num_workers, _bus(topology, protocol, constants)
        )
        return _ring_latency_s(topology, protocol, rounds=1) + _filled_s(
            np.maximum(links_s, devices_s), topology, protocol, constants
        )

    return _least(way_s(protocol) for protocol in constants.protocols)


def broadcast_s(num_bytes: Numbers, topology: Topology, constants: Constants = MEASURED) -> Numbers:
    """P−1 hops along a ring, pipelined."""

    def way_s(protocol: Protocol) -> Numbers:
        links = _bus(topology, protocol, constants)
        copies = _copy_rate(topology) * protocol.share
        route = replace(
            links, bandwidth_bytes_per_s=np.minimum(links.bandwidth_bytes_per_s, copies)
        )
        transfer_s = formulas.chain_broadcast_s(num_bytes, topology.num_workers, route)
        return _ring_latency_s(topology, protocol, rounds=1) + _filled_s(
            transfer_s, topology, protocol, constants
        )

    return _least(way_s(protocol) for protocol in constants.protocols)


def _ring_s(
    num_bytes: Numbers, topology: Topology, protocol: Protocol, constants: Constants
) -> Numbers:
    # Two limits with their own formulas: what the links carry and what the devices pass on.
    num_workers = topology.num_workers
    links_s = formulas.ring_all_reduce_s(
        num_bytes, num_workers, _bus(topology, protocol, constants)
    )
    devices_s = formulas.copied_ring_all_reduce_s(
        num_bytes, num_workers, _copy_rate(topology) * protocol.share
    )
    return _ring_latency_s(topology, protocol, rounds=2) + _filled_s(
        np.maximum(links_s, devices_s), topology, protocol, constants
    )


def _tree_s(
    num_bytes: Numbers, topology: Topology, protocol: Protocol, constants: Constants
) -> Numbers:
    """A chain in every node, which all bytes pass up and down, and a double tree over the nodes."""
    hops_s = (topology.workers_per_node - 1) * (topology.inside.latency_s + protocol.hop_s)
    inside = np.minimum(_inside_rate(topology), _copy_rate(topology)) * protocol.share
    transfer_s = np.maximum(
        2 * num_bytes / inside, _over_nodes_s(num_bytes, topology, protocol, constants)
    )
    return (
        topology.start_s
        + protocol.start_s
        + 2 * (hops_s + _levels_s(topology, protocol))
        + _filled_s(transfer_s, topology, protocol, constants)
    )


def _switch_s(num_bytes: Numbers, topology: Topology, constants: Constants) -> Numbers:
    """n·(1 + 1/g) over what a worker gets of its switch; over the nodes, a double tree.

    The switch reads all n bytes of every worker, adds up, and writes n to every worker; each asks
    for n/g of the sums and sends them out again, on the same links (NVLink SHARP: NCCL's NVLS, and
    NVLSTree between nodes).
    """
    workers = topology.workers_per_node
    rate = topology.switch_bandwidth_bytes_per_s
    is_used = np.greater(rate, 0) & np.greater_equal(workers, _LEAST_ON_SWITCH)
    inside_s = num_bytes * (1 + 1 / workers) / np.where(is_used, rate, 1.0)
    transfer_s = np.maximum(
        inside_s, _over_nodes_s(num_bytes, topology, constants.simple, constants)
    )
    is_alone = np.equal(topology.num_nodes, 1)
    filled_s = _filled_s(transfer_s, topology, constants.simple, constants)
    seconds = topology.start_s + constants.switch_start_s + np.where(is_alone, transfer_s, filled_s)
    seconds = seconds + 2 * _levels_s(topology, constants.simple)
    return np.where(is_used, seconds, np.inf)


def _levels_s(topology: Topology, protocol: Protocol) -> Numbers:
    """The latency of a tree over the nodes, one way."""
    return _levels(topology) * (topology.between.latency_s + protocol.between_hop_s)


def _levels(topology: Topology) -> Numbers:
    """Of a tree over the nodes."""
    levels: Numbers = np.ceil(np.log2(topology.num_nodes))
    return levels


def _over_nodes_s(
    num_bytes: Numbers, topology: Topology, protocol: Protocol, constants: Constants
) -> Numbers:
    """The bytes of a double binary tree over the nodes."""
    route = Route(
        latency_s=0.0,
        bandwidth_bytes_per_s=_between_rate(topology, protocol, constants),
        half_bytes=topology.between.half_bytes,
    )
    return formulas.tree_all_reduce_s(num_bytes, topology.num_nodes, route)


def _ring_latency_s(topology: Topology, protocol: Protocol, *, rounds: int) -> Numbers:
    between = topology.num_nodes - 1
    inside = topology.num_workers - 1 - between
    inside_s = inside * (topology.inside.latency_s + protocol.hop_s)
    between_s = between * (topology.between.latency_s + protocol.between_hop_s)
    return topology.start_s + protocol.start_s + rounds * (inside_s + between_s)


def _bus(topology: Topology, protocol: Protocol, constants: Constants) -> Route:
    """The bandwidth of a ring through all workers; its latency is counted elsewhere."""
    inside = _inside_rate(topology) * protocol.share
    between = np.where(
        np.equal(topology.num_nodes, 1), np.inf, _between_rate(topology, protocol, constants)
    )
    return Route(
        latency_s=0.0,
        bandwidth_bytes_per_s=np.minimum(inside, between),
        half_bytes=np.where(
            inside < between, topology.inside.half_bytes, topology.between.half_bytes
        ),
    )


def _inside_rate(topology: Topology) -> Numbers:
    # A node of one worker has no inside to pass.
    alone = np.equal(topology.workers_per_node, 1)
    return np.where(alone, np.inf, topology.inside_bandwidth_bytes_per_s)


def _copy_rate(topology: Topology) -> Numbers:
    alone = np.equal(topology.workers_per_node, 1)
    return np.where(alone, np.inf, topology.copy_bandwidth_bytes_per_s)


def _between_rate(topology: Topology, protocol: Protocol, constants: Constants) -> Numbers:
    """Rings and trees enter and leave a node once, through all of its cards together."""
    rate = topology.node_between.bandwidth_bytes_per_s * topology.between_efficiency
    if not protocol.windowed:
        return rate * protocol.share
    window = constants.window_bytes / np.maximum(2 * topology.between.latency_s, 1e-12)
    return np.minimum(np.minimum(rate * protocol.share, window), protocol.most_between_bytes_per_s)


def _filled_s(
    transfer_s: Numbers, topology: Topology, protocol: Protocol, constants: Constants
) -> Numbers:
    """A transfer with what its pipeline costs, which only Simple has: it passes on whole pieces.

    (h + k − 1) pieces of n/k bytes over h hops of latency α take n/B + h·α + √(4·h·α·n/B) with the
    best k: √(σ·t), where σ = 4·h·α.
    """
    if protocol.windowed:
        return transfer_s
    level_s = constants.fill_between_s + constants.fill_between_hops * topology.between.latency_s
    between_s = _levels(topology) * level_s * transfer_s
    inside_s = constants.fill_s * np.minimum(transfer_s, constants.full_pieces_s)
    return transfer_s + np.sqrt(inside_s + between_s)


def _least(estimates: Iterable[Numbers]) -> Numbers:
    return reduce(np.minimum, estimates)
