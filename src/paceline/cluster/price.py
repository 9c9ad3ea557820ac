"""What one device costs per hour, by the built-in clusters that have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from paceline.cluster.file import load_cluster
from paceline.cluster.preset import preset_names


@dataclass(frozen=True)
class Price:
    """A device's share of a node's list price."""

    per_hour: float
    """US dollars."""
    cluster: str
    """The built-in cluster whose price it is; ``paceline cluster show`` gives its source."""


@cache
def cheapest_price(device: str) -> Price | None:
    """The lowest list price of a device among the built-in clusters; None where none has it.

    Args:
        device: The device's name.
    """
    found = [
        Price(per_hour=node.price_per_hour / node.workers_per_node, cluster=name)
        for name in preset_names()
        for node in load_cluster(name).node_kinds
        if node.device.name == device and node.price_per_hour is not None
    ]
    return min(found, key=lambda price: price.per_hour, default=None)
