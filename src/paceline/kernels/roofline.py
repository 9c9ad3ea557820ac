"""Roofline: a kernel is limited by arithmetic or by memory, whichever takes longer.

S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from paceline.cluster.device import Device, Precision
from paceline.kernels.family import bytes_of, family_of, flop_of, multiplies
from paceline.steps.kernel import Kernel

LAUNCH_S = 2e-6
"""What even an empty kernel takes on a GPU, back to back with others (measured on an H200)."""

_PRECISION_OF_DTYPE: dict[str, Precision] = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}


def roofline_s(kernel: Kernel, device: Device, *, launch_s: float = LAUNCH_S) -> float:
    """max(FLOP / peak, bytes / bandwidth), and the launch."""
    arithmetic_s = flop_of(kernel) / peak_flops(kernel, device)
    memory_s = bytes_of(kernel) / device.memory_bandwidth_bytes_per_s
    return max(arithmetic_s, memory_s) + launch_s


def shortest_product_s(kernel: Kernel, device: Device, *, is_sustained: bool) -> float:
    """What a 16-bit matrix product takes at least, where it is known what large ones reach.

    A network that has seen no larger product extrapolates, and may promise more than the peak.

    Args:
        kernel: A product.
        device: What it runs on.
        is_sustained: Whether it is one of many in a row, as in training.

    """
    share = (device.sustained_share if is_sustained else None) or device.products_share
    if share is None or precision_of(kernel) not in ("bf16", "fp16"):
        return 0.0
    return flop_of(kernel) / (share * peak_flops(kernel, device))


def peak_flops(kernel: Kernel, device: Device) -> float:
    """The device's FLOP/s for this kernel: of its precision if it multiplies, else fp32's."""
    return device_flops(device, precision_of(kernel))


def precision_of(kernel: Kernel) -> Precision:
    """What a kernel computes in: its operands' precision if it multiplies, else fp32."""
    if not multiplies(family_of(kernel)):
        return "fp32"
    dtype = kernel.operands[0].dtype if kernel.operands else "f32"
    return "tf32" if kernel.math == "tf32" else _PRECISION_OF_DTYPE.get(dtype, "fp32")


def device_flops(device: Device, precision: Precision) -> float:
    """Peak FLOP/s; a precision without units of its own runs as fp32, or as what there is."""
    for each in (precision, "fp32"):
        if each in device.flops:
            return device.flops[each]
    return max(device.flops.values())
