"""A kind of node: a machine with workers, and how many of it there are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.cluster.device import Device
from paceline.cluster.link import Link
from paceline.cluster.record import Accepts, Count, Name, NotNegative, Positive, Record, Text

TYPICAL_JITTER = 0.05
"""Assumed where it was not measured. Published scaling efficiencies of ResNet-50, 2 to 1024 GPUs
(benchmarks/published_throughput.py) agree best with 0.05 to 0.07."""


class Node(Record):
    """``count`` equal machines with ``workers_per_node`` devices each."""

    name: Name
    count: Count = 1
    workers_per_node: Count = Field(alias="workers")
    """In a cluster's file, a node's table has them as ``workers``."""
    device: Annotated[Device, Accepts("a device's name such as 'v100'")]
    inside: Link
    """Between two workers of the node."""
    between: Link
    """From the node to the network, and so to the other nodes."""
    price_per_hour: Annotated[
        NotNegative | None, Accepts("a number of US dollars such as 24.48")
    ] = None
    """US dollars for one node for one hour, however many of its workers are used."""
    slowdown: Positive = 1.0
    """How many times as long a worker computes as its device alone would: cores, memory or power
    that workers share, or a machine that is slower than its kind."""
    jitter: NotNegative = TYPICAL_JITTER
    """How much a worker's time for the same work varies: standard deviation over mean."""
    source: Text = ""
    """Where the number of workers and the price are from."""
