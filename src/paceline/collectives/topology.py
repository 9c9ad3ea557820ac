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
    copy_bandwidth_bytes_per_s: Numbers = np.inf
    """How fast a worker's device passes data on, where that and not the link is the limit."""

    @property
    def num_workers(self) -> Numbers:
        """Workers of all nodes."""
        return self.num_nodes * self.workers_per_node

    @property
    def node_between(self) -> Route:
        """What the workers of a node together get out of it and into it."""
        return self.between if self.shared else self.between.times(self.workers_per_node)

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

        Collectives that share a card each get an equal part of it.
        """
        between = self.between.times(1 / num_talking) if self.shared else self.between
        return replace(self, workers_per_node=1, between=between)


def topology_of(cluster: Cluster) -> Topology:
    """All workers of a cluster, as one collective sees them.

    A ring or a tree waits for its slowest member, so where nodes differ the slowest links and the
    largest number of workers stand for all.
    """
    inside = [
        Route.of_link(node.inside) for node in cluster.node_kinds if node.workers_per_node > 1
    ]
    between = [Route.of_link(node.between) for node in cluster.node_kinds]
    return Topology(
        num_nodes=cluster.num_nodes,
        workers_per_node=max(cluster.workers_per_node),
        inside=_slowest(inside or [Route.of_link(node.inside) for node in cluster.node_kinds]),
        between=_slowest(between),
        shared=any(node.between.shared for node in cluster.node_kinds),
    )


def _slowest(routes: list[Route]) -> Route:
    return Route(
        latency_s=max(route.latency_s for route in routes),
        bandwidth_bytes_per_s=min(route.bandwidth_bytes_per_s for route in routes),
        half_bytes=max(route.half_bytes for route in routes),
    )
