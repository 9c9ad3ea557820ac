"""One worker's device: how much it holds, how fast it reads and how fast it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from paceline.cluster.quantity import Bandwidth, Bytes, Speed
from paceline.cluster.record import Accepts, Name, Record, Text, check_keys

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def _check_precisions(flops: Any) -> Any:
    if isinstance(flops, Mapping):
        check_keys(flops, PRECISIONS)
    return flops


class Device(Record):
    """A GPU, or a CPU core, by its peak figures: what a roofline needs."""

    name: Name
    memory_bytes: Annotated[Bytes, Field(ge=1)] = Field(validation_alias="memory")
    memory_bandwidth_bytes_per_s: Bandwidth = Field(validation_alias="memory_bandwidth")
    flops: Annotated[
        Mapping[Precision, Speed],
        Field(min_length=1),
        BeforeValidator(_check_precisions),
        Accepts('a table with at least one speed, such as { fp32 = "19.5 TFLOP/s" }'),
    ]
    """Peak FLOP/s of dense arithmetic by precision. A precision that the device has no units for
    is left out."""
    source: Text = ""
    """Where the figures are from."""

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.memory_bandwidth_bytes_per_s))
