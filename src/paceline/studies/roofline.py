"""The kernels of a step, as a Roofline chart needs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from paceline.kernels.family import bytes_of, family_of, flop_of
from paceline.kernels.model import KernelModel
from paceline.kernels.roofline import peak_flops
from paceline.steps import Capture, Kernel

_MOST_OPERANDS = 3  # in a kernel's title; an optimizer's kernel has hundreds


@dataclass(frozen=True, kw_only=True)
class RooflineKernel:
    """Equal kernels of one step."""

    title: str
    """The operator and the shapes it works on."""
    family: str
    count: int
    flop: float
    """Of one of them, as are the next four."""
    num_bytes: float
    seconds: float
    peak_flops: float
    """FLOP/s that the device has for its arithmetic."""

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.num_bytes

    @property
    def flops(self) -> float:
        """FLOP/s that it reaches."""
        return self.flop / self.seconds

    @property
    def total_s(self) -> float:
        """Seconds of all of them, per step."""
        return self.count * self.seconds


def roofline_kernels(capture: Capture, kernel_model: KernelModel) -> list[RooflineKernel]:
    """The kernels of a captured step, equal ones together, the one with the most time first.

    Args:
        capture: One captured training step.
        kernel_model: Tells how long each kernel takes, and on which device.
    """
    counts = Counter(capture.kernels())
    kernels = [
        RooflineKernel(
            title=_title(kernel),
            family=family_of(kernel) or "other",
            count=count,
            flop=flop_of(kernel),
            num_bytes=bytes_of(kernel),
            seconds=estimate.seconds,
            peak_flops=peak_flops(kernel, kernel_model.device),
        )
        for (kernel, count), estimate in zip(
            counts.items(), kernel_model.estimate(counts), strict=True
        )
    ]
    return sorted(kernels, key=lambda kernel: kernel.total_s, reverse=True)


def _title(kernel: Kernel) -> str:
    shapes = ["×".join(map(str, operand.shape)) or "1" for operand in kernel.operands]
    shown = ", ".join(shapes[:_MOST_OPERANDS])
    return f"{kernel.op} ({shown}{', …' if len(shapes) > _MOST_OPERANDS else ''})"
