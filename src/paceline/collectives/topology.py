"""What a collective has to know about where its workers sit.

All numbers may be NumPy arrays, which are broadcast against each other: a study times many
clusters in one call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.cluster import Cluster, Link

Numbers: TypeAlias = float | npt.NDArray[Any]

# Where a cluster's description does not say: between those of the systems in
# docs/evidence/collectives.md (0.74 to 0.84, and 5 to 10 us).
TYPICAL_INSIDE = 0.79
TYPICAL_START_S = 7e-6
_MANY = 1024


@dataclass(frozen=True, kw_only=True)
class Route:
    """What one flow of messages gets of a link. ``n`` bytes take :func:`formulas.message_s`."""

    latency_s: Numbers
    bandwidth_bytes_per_s: Numbers
    half_bytes: Numbers = 0.0
    """The size of a message that gets half of the bandwidth; 0: every size gets all of it."""

    @classmethod
    def of_link(cls, link: Link) -> Route:
        """The route over an idle link."""
        return cls(
            latency_s=link.latency_s,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            half_bytes=link.half_bytes,
        )

    def times(self, factor: Numbers) -> Route:
        """The same route with ``factor`` times its bandwidth."""
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * factor)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The workers of one collective and the links between them."""

    num_nodes: Numbers
    workers_per_node: Numbers
    """How many of them sit on a node; the largest number where nodes differ."""
    inside: Route
    """From one worker to another of its node."""
    between: Route
    """From a node to another: all that this collective gets of a node's network card, or what each
    worker's own card gives it."""
    shared: bool = True
    """Whether ``between`` is one card for the node's workers, or one for each of them."""
    worker_share: Numbers = 1.0
    """What share of a shared ``between`` one worker can use: that of the cards beside it."""
    copy_bandwidth_bytes_per_s: Numbers = np.inf
    """How fast a worker's device passes data on, where that and not the link is the limit."""
    between_efficiency: Numbers = 1.0
    """What NCCL reaches of the bandwidth between nodes."""
    switch_bandwidth_bytes_per_s: Numbers = 0.0
    """What a worker gets of a switch inside the node that adds up; 0: it does not."""
    start_s: Numbers = TYPICAL_START_S
    """What it takes NCCL to start a collective, before the first message."""
    reached: tuple[tuple[int, float], ...] | None = None
    """Numbers of workers in a node, and the bus bandwidth that NCCL reaches among so many."""

    @property
    def num_workers(self) -> Numbers:
        """Workers of all nodes."""
        return self.num_nodes * self.workers_per_node

    @property
    def inside_bandwidth_bytes_per_s(self) -> Numbers:
        """What the workers of a node have among each other: smooth between the ``reached``."""
        if self.reached is None:
            return self.inside.bandwidth_bytes_per_s
        counts, rates = np.log(np.array(self.reached)).T
        rate: Numbers = np.exp(np.interp(np.log(self.workers_per_node), counts, rates))[()]
        return rate

    def with_faster_inside(self, factor: float) -> Topology:
        """The same with ``factor`` times the bandwidth inside nodes, however it is described."""
        reached = self.reached and tuple((count, rate * factor) for count, rate in self.reached)
        return replace(
            self,
            inside=self.inside.times(factor),
            copy_bandwidth_bytes_per_s=self.copy_bandwidth_bytes_per_s * factor,
            switch_bandwidth_bytes_per_s=self.switch_bandwidth_bytes_per_s * factor,
            reached=reached,
        )

    @property
    def node_between(self) -> Route:
        """What the workers of a node together get out of it and into it."""
        if not self.shared:
            return self.between.times(self.workers_per_node)
        return self.between.times(np.minimum(1.0, self.workers_per_node * self.worker_share))

    @property
    def node(self) -> Topology:
        """The workers of one node."""
        return replace(self, num_nodes=1)

    @property
    def across(self) -> Topology:
        """One worker of each node, while the other workers of the nodes do the same."""
        return self.across_beside(self.workers_per_node)

    def across_beside(self, num_talking: Numbers) -> Topology:
        """One worker of each node, while so many workers of a node, it included, do the same.

        Collectives that share a card each get an equal part of it, and what the worker's own cards
        carry at most.
        """
        between = self.between
        if self.shared:
            between = between.times(np.minimum(1 / num_talking, self.worker_share))
        return replace(self, workers_per_node=1, between=between, worker_share=1.0)

    @property
    def between_workers(self) -> Topology:
        """One worker of a node and one of another, which nobody else disturbs."""
        return self.across_beside(1)


def topology_of(cluster: Cluster) -> Topology:
    """All workers of a cluster, as one collective sees them.

    A ring or a tree waits for its slowest member, so where nodes differ the slowest links and the
    largest number of workers stand for all.
    """
    several = [node.inside for node in cluster.node_kinds if node.workers_per_node > 1]
    inside = several or [node.inside for node in cluster.node_kinds]
    between = [node.between for node in cluster.node_kinds]
    topology = Topology(
        num_nodes=cluster.num_nodes,
        workers_per_node=max(cluster.workers_per_node),
        inside=_slowest([Route.of_link(link) for link in inside]),
        between=_slowest([Route.of_link(link) for link in between]),
        shared=any(link.shared for link in between),
        worker_share=min(link.worker_share for link in between),
        between_efficiency=min(_efficiency(link, 1.0) for link in between),
    )
    slowest = min(inside, key=lambda link: _efficiency(link, 1.0) * link.bandwidth_bytes_per_s)
    return with_inside(topology, slowest)


def with_inside(topology: Topology, link: Link) -> Topology:
    """The same topology with this link inside its nodes."""
    rate = link.bandwidth_bytes_per_s * _efficiency(link, TYPICAL_INSIDE)
    reached = tuple(sorted((link.reached_bytes_per_s or {}).items()))
    if link.shared and not reached:
        # A bus through the host: each of P workers of a ring sends, and two have it to themselves.
        reached = ((2, rate), (_MANY, rate * 2 / _MANY))
    return replace(
        topology,
        inside=Route.of_link(link),
        copy_bandwidth_bytes_per_s=np.inf if reached else rate,
        switch_bandwidth_bytes_per_s=link.switch_bandwidth_bytes_per_s or 0.0,
        start_s=TYPICAL_START_S if link.start_s is None else link.start_s,
        reached=reached or None,
    )


def _efficiency(link: Link, typical: float) -> float:
    return typical if link.efficiency is None else link.efficiency


def _slowest(routes: list[Route]) -> Route:
    return Route(
        latency_s=max(route.latency_s for route in routes),
        bandwidth_bytes_per_s=min(route.bandwidth_bytes_per_s for route in routes),
        half_bytes=max(route.half_bytes for route in routes),
    )
