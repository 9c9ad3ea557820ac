"""One worker's device: how much it holds, how fast it reads and how fast it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from paceline.cluster.record import Count, Name, Positive, Record

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Device(Record):
    """A GPU, or a CPU core, by its peak figures: what a roofline needs."""

    name: Name
    memory_bytes: Count
    memory_bandwidth_bytes_per_s: Positive
    flops: Annotated[Mapping[Precision, Positive], Field(min_length=1)]
    """Peak FLOP/s of dense arithmetic by precision. A precision that the device has no units for
    is left out."""
    source: str = ""
    """Where the figures are from."""

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.memory_bandwidth_bytes_per_s))
