"""A link: what a message costs on its way from one worker to another."""

from __future__ import annotations

from pydantic import Field

from paceline.cluster.quantity import Bandwidth, Bytes, Seconds
from paceline.cluster.record import Factor, Flag, Record, Share, Text


class Link(Record):
    """A message of n bytes takes ``latency_s + n / bandwidth_bytes_per_s`` on an idle link.

    With ``half_bytes`` it takes ``latency_s + (n + sqrt(n * half_bytes)) / bandwidth_bytes_per_s``.
    The bandwidth is that of one direction. Datasheets like to print the sum of both.
    """

    latency_s: Seconds = Field(validation_alias="latency")
    bandwidth_bytes_per_s: Bandwidth = Field(validation_alias="bandwidth")
    shared: Flag = False
    """Whether the node's workers share the bandwidth (one network card) or each have it to
    themselves (NVLink through a switch)."""
    half_bytes: Bytes = Field(default=0, validation_alias="half_bandwidth_at")
    """The size of a message that gets half of the bandwidth; larger ones get more, and 0 means
    that all get the whole of it."""
    interference: Share = 0.0
    """The share of its speed that a worker's computing loses while a transfer is under way: cores
    or memory that copy data, multiprocessors that add it up."""
    lone_interference: Share | None = None
    """The same while only one worker of each node transfers; None: ``interference`` divided by the
    number of a node's workers."""
    busy_factor: Factor = 1.0
    """How many times as long a transfer takes while all workers compute, where both need the same
    cores."""
    lone_busy_factor: Factor | None = None
    """The same of transfers of one worker of each node; None: ``busy_factor``."""
    source: Text = ""
    """Where the figures are from."""
