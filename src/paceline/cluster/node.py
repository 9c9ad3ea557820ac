"""A kind of node: a machine with workers, and how many of it there are."""

from __future__ import annotations

from paceline.cluster.device import Device
from paceline.cluster.link import Link
from paceline.cluster.record import Count, Name, NotNegative, Record


class Node(Record):
    """``count`` equal machines with ``workers`` devices each."""

    name: Name
    count: Count = 1
    workers: Count
    device: Device
    inside: Link
    """Between two workers of the node."""
    between: Link
    """From the node to the network, and so to the other nodes."""
    price_per_hour: NotNegative | None = None
    """US dollars for one node for one hour, however many of its workers are used."""
    source: str = ""
    """Where the number of workers and the price are from."""
