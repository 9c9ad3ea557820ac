"""Constants of NCCL fitted without one system, and that system's links as the others suggest.

For benchmarks/nccl_tables.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq, least_squares

from nccl_rows import (
    FITTED,
    IN_NODE,
    LARGE_BYTES,
    SMALL_BYTES,
    Array,
    between_rows,
    between_topology,
    in_node_rows,
    predict_s,
)
from paceline.cluster import Link, load_cluster
from paceline.collectives import Topology, nccl
from paceline.collectives.topology import topology_of, with_inside

# What a link of another kind cannot say about these: the bus of the L40S goes through the host,
# and a DGX-1 has no switch.
SWITCHED = ("a100_sxm", "h100_sxm", "b200_sxm")
# The constants of the protocols, and of each system what its link reaches, takes and starts with.
SHARED = ("ll", "ll128", "ll128_start", "simple_start", "simple_hop", "fill", "switch_start")
OWN = ("latency", "start", "efficiency", "switch")


def constants_of(values: Array) -> nccl.Constants:
    ll, ll128, ll128_start_s, simple_start_s, simple_hop_s, fill_s, switch_start_s = values
    base = nccl.MEASURED
    return replace(
        base,
        ll=replace(base.ll, share=ll),
        ll128=replace(base.ll128, share=ll128, start_s=ll128_start_s),
        simple=replace(base.simple, start_s=simple_start_s, hop_s=simple_hop_s),
        fill_s=fill_s,
        switch_start_s=switch_start_s,
    )


def with_own(system: str, values: Array) -> Topology:
    """A switched system with its data sheet's bandwidth, and with these figures."""
    latency_s, start_s, efficiency, switch = values
    link = load_cluster(IN_NODE[system]).node_kinds[0].inside
    adds_up = link.switch_bandwidth_bytes_per_s is not None
    own = Link(
        latency_s=latency_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        start_s=start_s,
        efficiency=min(efficiency, 1.0),
        switch_bandwidth_bytes_per_s=switch * link.bandwidth_bytes_per_s if adds_up else None,
    )
    return with_inside(topology_of(load_cluster(IN_NODE[system])), own)


def fit_without(left_out: str) -> tuple[nccl.Constants, Topology]:
    """Constants fitted to the other switched systems, and the left-out one as they suggest."""
    others = [system for system in SWITCHED if system != left_out]
    rows = [row for row in in_node_rows() if row.system in others]
    measured_s = np.array([row.measured_s for row in rows])
    weights = np.where([row.num_bytes >= LARGE_BYTES for row in rows], 1.5, 0.7)
    base = nccl.MEASURED
    start = [
        *(base.ll.share, base.ll128.share, base.ll128.start_s, base.simple.start_s),
        *(base.simple.hop_s, base.fill_s, base.switch_start_s),
        *([1e-6, 7e-6, 0.8, 0.6] * len(others)),
    ]

    def unpack(logs: Array) -> tuple[nccl.Constants, Array]:
        values = np.exp(logs)
        own = values[len(SHARED) :].reshape(len(others), len(OWN))
        return constants_of(values[: len(SHARED)]), own

    def residuals(logs: Array) -> Array:
        constants, own = unpack(logs)
        topologies = {name: with_own(name, each) for name, each in zip(others, own, strict=True)}
        ratio = predict_s(rows, topologies, constants) / measured_s
        pull = 0.3 * (logs - np.log(start))  # where the systems that are left do not tell
        return np.concatenate([weights * np.clip(np.log(ratio), -0.6, 0.6), pull])

    solution = least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1).x
    constants, own = unpack(solution)
    return constants, with_own(left_out, np.exp(np.log(own).mean(axis=0)))


# What holds of every network, and of each its latency and efficiency.
OF_NETWORKS = ("ll_most", "window", "simple_hop", "fill", "fill_hops")


def network_constants(values: Array) -> nccl.Constants:
    ll_most, window, simple_hop_s, fill_s, fill_hops = values
    base = nccl.MEASURED
    return replace(
        base,
        ll=replace(base.ll, most_between_bytes_per_s=ll_most),
        simple=replace(base.simple, between_hop_s=simple_hop_s),
        window_bytes=window,
        fill_between_s=fill_s,
        fill_between_hops=fill_hops,
    )


def with_network(system: str, latency_s: float, efficiency: float) -> Topology:
    where = between_topology(system)
    between = replace(where.between, latency_s=latency_s)
    return replace(where, between=between, between_efficiency=min(efficiency, 1.0))


def fit_networks(left_out: str) -> tuple[nccl.Constants, Topology]:
    """Constants fitted to the other networks, and the left-out one with what they reach.

    Every table counts the same: a network, and a number of its nodes.
    """
    others = [system for system in FITTED if system != left_out]
    rows = [row for row in between_rows() if row.system in others and row.nodes > 1]
    measured_s = np.array([row.measured_s for row in rows])
    sizes = Counter((row.system, row.nodes) for row in rows)
    weights = np.array([sizes[row.system, row.nodes] ** -0.5 for row in rows])
    base = nccl.MEASURED
    start = [base.ll.most_between_bytes_per_s, base.window_bytes, base.simple.between_hop_s]
    start += [base.fill_between_s, base.fill_between_hops]
    for system in others:
        known = between_topology(system)
        start += [float(known.between.latency_s), float(known.between_efficiency)]

    def unpack(logs: Array) -> tuple[nccl.Constants, Array]:
        values = np.exp(logs)
        own = values[len(OF_NETWORKS) :].reshape(len(others), 2)
        return network_constants(values[: len(OF_NETWORKS)]), own

    def residuals(logs: Array) -> Array:
        constants, own = unpack(logs)
        topologies = {
            name: with_network(name, *each) for name, each in zip(others, own, strict=True)
        }
        ratio = predict_s(rows, topologies, constants) / measured_s
        pull = 0.02 * (logs - np.log(start))
        return np.concatenate([weights * np.clip(np.log(ratio), -1.2, 1.2), pull])

    solution = least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.05).x
    constants, own = unpack(solution)
    efficiency = float(np.exp(np.log(own[:, 1]).mean()))
    return constants, with_network(left_out, smallest_latency_s(left_out), efficiency)


def smallest_latency_s(system: str) -> float:
    """A network's latency by its own smallest all-reduce: what one short run tells."""
    rows = [row for row in between_rows() if row.system == system and row.kind == "all_reduce"]
    row = min(rows, key=lambda each: (each.nodes, each.num_bytes))
    where = between_topology(system)

    def missing_s(log: float) -> float:
        told = with_network(system, float(np.exp(log)), float(where.between_efficiency))
        return float(predict_s([row], {system: told}, nccl.MEASURED)[0]) - row.measured_s

    if missing_s(np.log(1e-7)) > 0 or row.num_bytes > SMALL_BYTES:
        return float(where.between.latency_s)  # its small messages are not known
    return float(np.exp(brentq(missing_s, np.log(1e-7), np.log(1e-2))))
