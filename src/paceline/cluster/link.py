"""A link: what a message costs on its way from one worker to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializationInfo, field_serializer

from paceline.cluster.quantity import Bandwidth, Bytes, Seconds
from paceline.cluster.record import (
    Accepts,
    BadKeyError,
    Factor,
    Flag,
    PartOfOne,
    Record,
    Share,
    Text,
)
from paceline.cluster.units import write_bandwidth


def _whole_keys(reached: Any) -> Any:
    """Numbers of workers, which a TOML table has as texts."""
    if not isinstance(reached, Mapping):
        return reached
    for count in reached:
        if not str(count).isdecimal() or int(count) < 2:
            raise BadKeyError("is not a number of workers: write 2 or more", str(count))
    return {int(count): rate for count, rate in reached.items()}


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
    worker_share: PartOfOne = 1.0
    """Between nodes: the share of a shared bandwidth that one worker can use, which is that of the
    cards beside it: an eighth, where each of eight GPUs has a card. NCCL leaves the others alone
    when fewer workers of the node take part. Gloo's collectives do not ask for it."""
    half_bytes: Bytes = Field(default=0, validation_alias="half_bandwidth_at")
    """The size of a message that gets half of the bandwidth; larger ones get more, and 0 means
    that all get the whole of it."""
    efficiency: PartOfOne | None = None
    """What NCCL's collectives reach of the bandwidth, at best; None: 0.79 inside a node, which is
    typical, and all of it between nodes. Gloo's collectives do not ask for it."""
    reached_bytes_per_s: Annotated[
        Mapping[int, Bandwidth] | None,
        BeforeValidator(_whole_keys),
        Accepts('a table such as { 2 = "20 GB/s", 8 = "12 GB/s" }'),
    ] = Field(default=None, validation_alias="reached")
    """Inside a node: the bus bandwidth that NCCL reaches among so many workers, where it depends on
    their number (PCIe, links that do not join all GPUs). It counts instead of
    ``bandwidth_bytes_per_s`` and ``efficiency``."""
    switch_bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, validation_alias="switch_bandwidth"
    )
    """Inside a node: what a worker gets of a switch that adds up (NVLink SHARP); None: it does not
    add up."""
    start_s: Seconds | None = Field(default=None, validation_alias="start")
    """Inside a node: what it takes NCCL to start a collective; None: 7 us."""
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

    def __hash__(self) -> int:
        return hash((self.latency_s, self.bandwidth_bytes_per_s, self.shared, self.source))

    @field_serializer("reached_bytes_per_s")
    def _text_keys(self, reached: Mapping[int, float] | None, info: SerializationInfo) -> Any:
        return (
            None
            if reached is None
            else {
                str(count): write_bandwidth(rate) if info.context else rate
                for count, rate in reached.items()
            }
        )
