"""Kernels by which a machine is compared with the profile of its device."""

from __future__ import annotations

from paceline.kernels.family import FamilyName, family_of
from paceline.kernels.library import built_in_table, profiled_devices
from paceline.kernels.profile import Timing
from paceline.steps.kernel import Kernel

_MOST_IN_FAMILY = 3
# Long enough for a clock, short enough for many of them.
_LEAST_S, _MOST_S = 2e-4, 2e-3
_MOST_BYTES = 256 << 20


def reference_kernels(device: str) -> dict[Kernel, float]:
    """Some kernels of networks in float32, with the seconds that the device's profile gives them.

    The same ones every time, of every family a few. None for a device whose profile does not come
    with paceline.
    """
    if device not in profiled_devices():
        return {}
    known = built_in_table(device).some_of(lambda op: True, dtype="f32", most=8000)
    families: dict[FamilyName | None, list[Kernel]] = {}
    for kernel, timing in known.items():
        if _is_fit(kernel, timing):
            families.setdefault(family_of(kernel), []).append(kernel)
    return {
        kernel: known[kernel].seconds or 0.0
        for members in families.values()
        for kernel in _small_ones(members)
    }


def _small_ones(kernels: list[Kernel]) -> list[Kernel]:
    """A few out of the smaller quarter: operands have to be made before anything is timed."""
    smaller = sorted(kernels, key=lambda kernel: kernel.num_bytes)[: -(-len(kernels) // 4)]
    return smaller[:: -(-len(smaller) // _MOST_IN_FAMILY)]


def _is_fit(kernel: Kernel, timing: Timing) -> bool:
    """Whether it is a network's, quick and small, and computed as PyTorch does by default."""
    return (
        timing.seconds is not None
        and _LEAST_S < timing.seconds < _MOST_S
        and bool(timing.sources)
        and kernel.num_bytes < _MOST_BYTES
        and (not kernel.math or "convolution" in kernel.op)
    )
