"""Where a number of workers sits: in one node, or in as many whole nodes as it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.cluster import Cluster
from paceline.collectives import Topology
from paceline.collectives.topology import topology_of
from paceline.studies.points import Array


def num_nodes_of(workers: Array, per_node: int) -> Array:
    """Nodes that so many workers take."""
    return np.asarray(np.maximum(1, workers // per_node))


def topology_for(cluster: Cluster, workers: Array, link: Array) -> Topology:
    """The cluster's topology with other numbers of workers and other links between the nodes."""
    base = topology_of(cluster)
    per_node = cluster.node_kinds[0].workers_per_node
    return replace(
        base,
        num_nodes=num_nodes_of(workers, per_node),
        workers_per_node=np.minimum(workers, per_node),
        between=replace(base.between, bandwidth_bytes_per_s=link),
    )
