"""One worker's device: how much it holds, how fast it reads and how fast it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field

from paceline.cluster.quantity import Bandwidth, Bytes, Speed
from paceline.cluster.record import Accepts, Count, Name, Positive, Record, Text, check_keys

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
    architecture: Text = ""
    """The generation of the chip, such as ``hopper``: its products are computed alike."""
    multiprocessors: Count | None = None
    clock_ghz: Positive | None = None
    """What the multiprocessors run at in training, which may be above the nominal boost."""
    l2_bytes: Annotated[Bytes, Field(ge=1)] | None = Field(default=None, validation_alias="l2")
    products_share: Positive | None = None
    """The share of the peak that large matrix products reach: power, and the generation."""
    sustained_share: Positive | None = None
    """The same of many products in a row, where single ones were measured to reach more."""
    fp32_share: Positive | None = None
    """The share of the fp32 peak that large products reach without tensor cores."""
    grouped_channels_last_share: Positive | None = None
    """The share of the fp32 peak that grouped convolutions of channels-last images in low precision
    reach, where cuDNN was found to have no good kernel for them."""
    facts_source: Text = ""
    """Where the facts are from that only other devices' kernels need."""

    @property
    def is_compared(self) -> bool:
        """Whether predictions for this kind of device were ever compared with measurements."""
        return not self.architecture.startswith("cdna")

    def scaled(self, *, arithmetic: float = 1.0, memory: float = 1.0) -> Self:
        """The same device with faster multiprocessors or faster memory.

        Args:
            arithmetic: How many times as fast its multiprocessors run, and all that they do.
            memory: How many times as fast its memory is.
        """
        return self.replace(
            flops={name: speed * arithmetic for name, speed in self.flops.items()},
            clock_ghz=None if self.clock_ghz is None else self.clock_ghz * arithmetic,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s * memory,
        )

    def has_figures_of(self, other: Device) -> bool:
        """Whether kernels take as long here as there: the same peaks, and the same chip."""
        same = ("memory_bandwidth_bytes_per_s", "flops", "multiprocessors", "clock_ghz")
        return all(getattr(self, name) == getattr(other, name) for name in same)

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.memory_bandwidth_bytes_per_s))
