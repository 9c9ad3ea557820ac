"""A cluster: kinds of nodes, equal or not, and what they add up to."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from paceline.cluster.node import Node
from paceline.cluster.record import Accepts, Name, Record, Text
from paceline.cluster.units import format_bandwidth

MOST_WORKERS = 10_000_000
"""Of a cluster: every node's number of workers is kept."""


class Cluster(Record):
    """Where a training runs, or would run."""

    name: Name
    description: Text = ""
    node_kinds: Annotated[
        tuple[Node, ...], Field(min_length=1, strict=False), Accepts("at least one [[node]] table")
    ] = Field(validation_alias="node")
    """The kinds of node. Physical nodes are numbered in this order, kind after kind."""

    @model_validator(mode="after")
    def _one_device_per_name(self) -> Self:
        # A table of measured kernels is looked up by the device's name: two devices that share
        # one would be timed as the same.
        known = {node.device.name: node.device for node in self.node_kinds}
        for node in self.node_kinds:
            if node.device != known[node.device.name]:
                raise ValueError(
                    f"two different devices are named '{node.device.name}': rename one of them"
                )
        return self

    @model_validator(mode="after")
    def _not_beyond_memory(self) -> Self:
        if self.num_workers > MOST_WORKERS:
            raise ValueError(
                f"{self.num_workers:,} workers are more than the {MOST_WORKERS:,} of the largest "
                "cluster that can be predicted"
            )
        return self

    @property
    def num_nodes(self) -> int:
        """Physical nodes, of all kinds."""
        return sum(node.count for node in self.node_kinds)

    @property
    def num_workers(self) -> int:
        """Workers of all nodes."""
        return sum(node.count * node.workers_per_node for node in self.node_kinds)

    @property
    def workers_per_node(self) -> tuple[int, ...]:
        """The number of workers of each physical node."""
        return tuple(node.workers_per_node for node in self.node_kinds for _ in range(node.count))

    @property
    def is_uniform(self) -> bool:
        """Whether the nodes differ in nothing but their names."""
        first = self.node_kinds[0]
        return all(
            node.replace(name=first.name, count=first.count) == first for node in self.node_kinds
        )

    @property
    def price_per_hour(self) -> float | None:
        """US dollars for the whole cluster for one hour, or None if a node's price is unknown."""
        total = 0.0
        for node in self.node_kinds:
            if node.price_per_hour is None:
                return None
            total += node.count * node.price_per_hour
        return total

    def with_nodes(self, num_nodes: int) -> Cluster:
        """The same cluster with another number of nodes."""
        return self._with_node(count=num_nodes)

    def with_workers_per_node(self, num_workers: int) -> Cluster:
        """The same cluster with another number of workers on every node."""
        return self._with_node(count=self.num_nodes, workers_per_node=num_workers)

    def with_link(self, bandwidth_bytes_per_s: float) -> Cluster:
        """The same cluster with another bandwidth between nodes, which any worker can use."""
        nodes = []
        for node in self.node_kinds:
            # The cards and the source were those of the old bandwidth.
            link = node.between.replace(
                bandwidth_bytes_per_s=bandwidth_bytes_per_s,
                worker_share=1.0,
                source=f"bandwidth set to {format_bandwidth(bandwidth_bytes_per_s, bits=True)}",
            )
            nodes.append(node.replace(between=link))
        return self.replace(node_kinds=tuple(nodes))

    def with_price(self, price_per_hour: float) -> Cluster:
        """The same cluster where every node costs so many US dollars for one hour."""
        return self._with_each(price_per_hour=float(price_per_hour))

    def with_host(self, host: str | float) -> Cluster:
        """The same cluster with another host in every node, by its name or its speed."""
        return self._with_each(host=host)

    def _with_each(self, **changes: Any) -> Cluster:
        return self.replace(node_kinds=tuple(node.replace(**changes) for node in self.node_kinds))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, in bytes, seconds and FLOP/s, with the totals."""
        totals = {
            "num_nodes": self.num_nodes,
            "num_workers": self.num_workers,
            "workers_per_node": list(self.workers_per_node),
            "price_per_hour": self.price_per_hour,
        }
        return (
            self.model_dump(mode="json", exclude={"node_kinds"})
            | totals
            | {"nodes": [node.model_dump(mode="json", by_alias=True) for node in self.node_kinds]}
        )

    def _with_node(self, **changes: int) -> Cluster:
        if not self.is_uniform:
            raise ValueError(
                f"cluster '{self.name}' has {len(self.node_kinds)} kinds of node, so one number of"
                " nodes or workers cannot describe it: change the numbers in its file"
            )
        return self.replace(node_kinds=(self.node_kinds[0].replace(**changes),))
