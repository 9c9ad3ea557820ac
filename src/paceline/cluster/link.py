"""A link: what a message costs on its way from one worker to another."""

from __future__ import annotations

from paceline.cluster.record import NotNegative, Positive, Record


class Link(Record):
    """A message of n bytes takes ``latency_s + n / bandwidth_bytes_per_s`` on an idle link.

    The bandwidth is that of one direction. Datasheets like to print the sum of both.
    """

    latency_s: NotNegative
    bandwidth_bytes_per_s: Positive
    shared: bool = False
    """Whether the node's workers share the bandwidth (one network card) or each have it to
    themselves (NVLink through a switch)."""
    source: str = ""
    """Where the figures are from."""
