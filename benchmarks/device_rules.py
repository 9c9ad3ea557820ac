"""Rules that carry a kernel's time from one device to another, for benchmarks/devices.py.

Only the last is paceline's; the others are what it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from paceline.cluster import Device
from paceline.kernels.family import bytes_of, flop_of
from paceline.kernels.roofline import LAUNCH_S, peak_flops
from paceline.kernels.transfer import reached, transferred_s, work_of
from paceline.steps import Kernel

Array = npt.NDArray[np.float64]
Rule = Callable[[Sequence[Kernel], Array, Device, Device], Array]
_GOOD_EFFICIENCY = 0.8


def by_bandwidth(kernels: Sequence[Kernel], seconds: Array, old: Device, new: Device) -> Array:
    """All of a kernel's time follows memory bandwidth, above an arithmetic floor."""
    flop = np.array([flop_of(kernel) for kernel in kernels])
    work_s = np.maximum(seconds - LAUNCH_S, 0.0)
    shown = flop / _peaks(kernels, old) / np.maximum(work_s, 1e-12)
    arithmetic_s = flop / _peaks(kernels, new) / np.maximum(shown, _GOOD_EFFICIENCY)
    slower = old.memory_bandwidth_bytes_per_s / new.memory_bandwidth_bytes_per_s
    return np.asarray(np.maximum(work_s * slower, arithmetic_s) + np.minimum(seconds, LAUNCH_S))


def by_processors(kernels: Sequence[Kernel], seconds: Array, old: Device, new: Device) -> Array:
    """The roofline on the new device; the rest by multiprocessors times clock. Nothing fitted."""
    rest = np.maximum(seconds - _rooflines(kernels, old), 0.0)
    assert old.multiprocessors
    assert old.clock_ghz
    assert new.multiprocessors
    assert new.clock_ghz
    slower = old.multiprocessors * old.clock_ghz / (new.multiprocessors * new.clock_ghz)
    return np.asarray(_rooflines(kernels, new) + rest * slower)


def by_parts(kernels: Sequence[Kernel], seconds: Array, old: Device, new: Device) -> Array:
    """paceline's transfer, before what is fitted to products."""
    work = work_of(kernels)
    return transferred_s(seconds, work, reached(old, work), reached(new, work))


RULES: dict[str, Rule] = {
    "all by bandwidth": by_bandwidth,
    "roofline, rest by multiprocessors": by_processors,
    "by parts": by_parts,
}


def _peaks(kernels: Sequence[Kernel], device: Device) -> Array:
    return np.array([peak_flops(kernel, device) for kernel in kernels])


def _rooflines(kernels: Sequence[Kernel], device: Device) -> Array:
    flop = np.array([flop_of(kernel) for kernel in kernels])
    moved = np.array([bytes_of(kernel) for kernel in kernels])
    memory_s = moved / device.memory_bandwidth_bytes_per_s
    return np.asarray(np.maximum(flop / _peaks(kernels, device), memory_s) + LAUNCH_S)
