"""What holds on each kind of node: its collectives' costs, and what slows its workers down."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cluster import Cluster, Node
from paceline.cluster.collective import Library
from paceline.cluster.node import Jitter, typical_jitter
from paceline.collectives import Numbers, Topology, collective_s
from paceline.collectives.topology import topology_of, with_inside
from paceline.rehearse.conditions import Conditions
from paceline.rehearse.program import CollectiveCost, NodeRules
from paceline.teams.journal import TeamName


def distinct_nodes(cluster: Cluster) -> list[tuple[Node, int]]:
    """The kinds of node that differ, and how many nodes there are of each."""
    found: dict[Node, int] = {}
    for node in cluster.node_kinds:
        plain = plain_node(node)
        found[plain] = found.get(plain, 0) + node.count
    return list(found.items())


def plain_node(node: Node) -> Node:
    """What a node does, without its name, number and price."""
    return node.replace(name="node", count=1, price_per_hour=None, source="")


def rules_of_node(
    cluster: Cluster, node: Node, count: int, *, serial: bool, jitter: float | None
) -> NodeRules:
    """What holds on ``count`` nodes of a cluster; without a ``jitter`` the node's own."""
    topology = with_inside(topology_of(cluster), node.inside)
    varies = jitter_between(jitter, None, node, on_cpu=serial)
    return NodeRules(
        workers=node.workers_per_node,
        nodes=count,
        serial=serial,
        collective=_collective_cost(topology, node.workers_per_node, serial=serial),
        interference=_interference(node),
        busy_factor=_busy_factor(node),
        jitter=varies.worker,
        node_jitter=varies.node,
    )


def rules_of_conditions(conditions: Conditions, *, serial: bool) -> NodeRules:
    """What holds on the nodes that conditions describe."""
    topology = conditions.topology
    varies = jitter_between(
        conditions.jitter, conditions.node_jitter, conditions.node, on_cpu=serial
    )
    return NodeRules(
        workers=topology.workers_per_node,
        nodes=topology.num_nodes,
        serial=serial,
        collective=_collective_cost(topology, topology.workers_per_node, serial=serial),
        interference={} if conditions.node is None else _interference(conditions.node),
        busy_factor={} if conditions.node is None else _busy_factor(conditions.node),
        jitter=varies.worker,
        node_jitter=varies.node,
    )


def jitter_between(
    worker: float | None, node_jitter: float | None, node: Node | None, *, on_cpu: bool
) -> Jitter:
    """How much workers vary: what was asked for, what the nodes say, or what is typical."""
    if worker is not None:
        return Jitter(worker, node_jitter or 0.0)
    known = typical_jitter(on_cpu=on_cpu) if node is None else node.jitter_of(on_cpu=on_cpu)
    return known if node_jitter is None else known._replace(node=node_jitter)


def _interference(node: Node) -> dict[TeamName, Numbers]:
    between, inside = node.between.interference, node.inside.interference
    lone = node.between.lone_interference  # across, one of a node's workers communicates
    across = between / node.workers_per_node if lone is None else lone
    return {"world": between, "across": across, "node": inside}


def _busy_factor(node: Node) -> dict[TeamName, Numbers]:
    between = node.between
    across = between.busy_factor if between.lone_busy_factor is None else between.lone_busy_factor
    factors: dict[TeamName, Numbers] = {
        "world": between.busy_factor,
        "across": across,
        "node": node.inside.busy_factor,
    }
    return {} if all(factor == 1 for factor in factors.values()) else factors


def _collective_cost(topology: Topology, workers: Numbers, *, serial: bool) -> CollectiveCost:
    """What a node with so many workers pays for the collectives that it takes part in."""
    library: Library = "gloo" if serial else "nccl"
    places = {"world": topology, "node": topology.node}
    known: dict[tuple[Any, ...], Numbers] = {}

    def cost(team: TeamName, kind: Any, num_bytes: int, card_share: float) -> Numbers:
        key = (team, kind, num_bytes, card_share)
        if key not in known:
            num_sharing = np.maximum(1, card_share * workers)
            place = topology.across_beside(num_sharing) if team == "across" else places[team]
            known[key] = collective_s(kind, num_bytes, place, library=library)
        return known[key]

    return cost
