"""A kernel's time on a device that was not measured, from its time on one that was.

A kernel's time is taken apart on the measured device m and put together on the other one, d:

    t_d = launch_d + roofline_d + (t_m - launch_m - roofline_m) * x

- roofline: max(FLOP / reached rate, bytes / reached bandwidth). "Reached" is what large products
  and copies get, not the peak: power limits and generations differ (``products_share``).
- Bytes come from the L2 cache where they are still in it: what the kernel before has just written,
  if it fits; weights, which were last used a step ago, only if they are small beside the cache.
- x: the rest is latency, occupancy and instructions, which have nothing to do with memory. It
  follows the clock, and the multiprocessors as far as the kernel has blocks to fill them. A sixth
  of it (the exponent 0.15) follows the roofline: kernels wait longer for slower memory.

A kernel that beats the measured device's roofline beats the other's by as much. From a device to
itself, nothing changes. docs/evidence/devices.md compares this with other rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.cluster.device import Device, Precision
from paceline.kernels.family import bytes_of, family_of, flop_of
from paceline.kernels.roofline import LAUNCH_S, device_flops, precision_of
from paceline.steps.kernel import Kernel

Array: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = float | Array

USUAL_PRODUCTS_SHARE = 0.8
"""Of a device that does not say: what data-centre GPUs reach (stas00/ml-engineering)."""
_COPY_SHARE = 0.85  # of the peak bandwidth, as skinny products reach it on four GPUs
_FP32_SHARE = 0.95  # of multiply-adds outside tensor cores, which draw less power
_WIDE_FP32_SHARE = 0.78  # where integers and loads compete with 128 of them per multiprocessor
_WIDE_FLOP_PER_CYCLE = 200.0
_FOLLOWS_ROOFLINE = 0.15
_L2_BYTES_PER_CYCLE = 12.0  # per multiprocessor
_HOT_SHARE = 0.7  # of L2: what was just written is found there if it is smaller
_COLD_SHARE = 0.125  # of L2: weights are
_SHARPNESS = 6
_FLOP_PER_CYCLE = 256.0  # of a multiprocessor in fp32: 128 multiply-adds
_USUAL_MULTIPROCESSORS = 100
_TILE = 128
_UNLIMITED = 1e12
_STEP_OF_A_SPLIT = 1024


@dataclass(frozen=True)
class Work:
    """What kernels do, in arrays: one element per kernel."""

    flop: Array
    num_bytes: Array
    weight_bytes: Array
    """Of ``num_bytes``: weights, which nobody has touched since the last step."""
    blocks: Array
    """Thread blocks that can run at once."""
    precisions: tuple[Precision, ...]
    is_grouped: npt.NDArray[np.bool_]
    """See :func:`is_grouped`."""


def work_of(kernels: Sequence[Kernel]) -> Work:
    """What a transfer must know of kernels."""
    return Work(
        flop=np.array([flop_of(kernel) for kernel in kernels], dtype=np.float64),
        num_bytes=np.array([bytes_of(kernel) for kernel in kernels], dtype=np.float64),
        weight_bytes=np.array([_weight_bytes(kernel) for kernel in kernels], dtype=np.float64),
        blocks=np.array([_blocks(kernel) for kernel in kernels], dtype=np.float64),
        precisions=tuple(precision_of(kernel) for kernel in kernels),
        is_grouped=np.array([is_grouped(kernel) for kernel in kernels], dtype=bool),
    )


@dataclass(frozen=True)
class Reached:
    """What a device gets done. Rates may have leading axes, one element per study point."""

    flops: Array
    """For each kernel's precision, along the last axis."""
    bytes_per_s: Array
    clock_hz: Array
    multiprocessors: float
    l2_bytes: float
    grouped_flops: Array | None
    """Of grouped convolutions in channels-last, where these are slow."""


def reached(
    device: Device, work: Work, *, arithmetic: Numbers = 1.0, memory: Numbers = 1.0
) -> Reached:
    """What a device, or one that is so many times as fast, gets done of this work."""
    share = device.products_share or USUAL_PRODUCTS_SHARE
    faster = np.asarray(arithmetic, dtype=np.float64)[..., None]
    fp32, slow = device_flops(device, "fp32"), device.grouped_channels_last_share
    rates = {
        name: device_flops(device, name)
        * (share if name != "fp32" and name in device.flops else _fp32_share(device, share))
        for name in set(work.precisions)
    }
    clock_hz = 1e9 * (device.clock_ghz or 0.0)
    count = float(
        device.multiprocessors
        or (fp32 / _FLOP_PER_CYCLE / clock_hz if clock_hz else _USUAL_MULTIPROCESSORS)
    )
    return Reached(
        flops=np.array([rates[name] for name in work.precisions]) * faster,
        bytes_per_s=np.asarray(
            _COPY_SHARE * device.memory_bandwidth_bytes_per_s * np.asarray(memory)[..., None]
        ),
        clock_hz=(clock_hz or fp32 / _FLOP_PER_CYCLE / count) * faster,
        multiprocessors=count,
        l2_bytes=float(device.l2_bytes or 1),
        grouped_flops=slow * fp32 * faster if slow is not None else None,
    )


def _fp32_share(device: Device, products_share: float) -> float:
    """Of the fp32 peak; a chip that lacks the power for tensor cores lacks some for this too."""
    if device.fp32_share is not None:
        return device.fp32_share
    share = _FP32_SHARE
    if device.multiprocessors and device.clock_ghz:
        cycles = device.multiprocessors * device.clock_ghz * 1e9
        if device_flops(device, "fp32") / cycles > _WIDE_FLOP_PER_CYCLE:
            share = _WIDE_FP32_SHARE
    return min(share, products_share + 0.05)


def transferred_s(seconds: Array, work: Work, measured: Reached, wanted: Reached) -> Array:
    """Seconds on the wanted device of kernels that took ``seconds`` on the measured one."""
    before_s, after_s = roofline_reached_s(work, measured), roofline_reached_s(work, wanted)
    slower_clock = measured.clock_hz / wanted.clock_hz
    launch_s = LAUNCH_S * (1 + slower_clock) / 2
    work_s = np.maximum(seconds - LAUNCH_S, 1e-8)
    fill = np.maximum(work.blocks / wanted.multiprocessors, 1.0)
    fill /= np.maximum(work.blocks / measured.multiprocessors, 1.0)
    rest = (slower_clock * fill) ** (1 - _FOLLOWS_ROOFLINE)
    rest = rest * (after_s / before_s) ** _FOLLOWS_ROOFLINE
    is_slower = work_s > before_s
    found = np.where(is_slower, after_s + (work_s - before_s) * rest, after_s * (work_s / before_s))
    if wanted.grouped_flops is not None and measured.grouped_flops is None:
        slow_s = work.flop / wanted.grouped_flops
        found = np.where(work.is_grouped, np.maximum(found, slow_s), found)
    return np.asarray(found + launch_s * np.minimum(seconds / LAUNCH_S, 1.0))


def roofline_reached_s(work: Work, device: Reached) -> Array:
    """The longer of arithmetic and memory, at the rates that are reached."""
    cache = np.maximum(
        _L2_BYTES_PER_CYCLE * device.multiprocessors * device.clock_hz, device.bytes_per_s
    )
    hot = work.num_bytes - work.weight_bytes
    memory_s = _read_s(hot, _HOT_SHARE * device.l2_bytes, cache, device.bytes_per_s)
    memory_s += _read_s(work.weight_bytes, _COLD_SHARE * device.l2_bytes, cache, device.bytes_per_s)
    return np.asarray(np.maximum(work.flop / device.flops, memory_s))


def _read_s(num_bytes: Array, fits_bytes: float, cache: Array, memory: Array) -> Array:
    cached = 1.0 / (1.0 + np.minimum(num_bytes / fits_bytes, 1e9) ** _SHARPNESS)
    return np.asarray(num_bytes * ((1 - cached) / memory + cached / cache))


def is_same_chip(one: Device, other: Device) -> bool:
    """Whether kernels of one device run as they are on the other, if faster or slower."""
    facts = ("architecture", "multiprocessors", "l2_bytes", "products_share")
    return all(getattr(one, name) == getattr(other, name) for name in facts)


def _weight_bytes(kernel: Kernel) -> int:
    family = family_of(kernel)
    if family == "matmul":
        return kernel.operands[-1].num_bytes
    if family in ("convolution", "convolution_backward_data"):
        return kernel.operands[1 if family == "convolution" else 2].num_bytes
    return 0


def is_grouped(kernel: Kernel) -> bool:
    """Whether it is a grouped, not a depthwise, convolution in low precision, channels last."""
    if not kernel.op.startswith("convolution") or kernel.args[8] == 1:
        return False
    weight = kernel.operands[1 if kernel.op == "convolution" else 2]
    is_last = any(each.is_channels_last for each in kernel.operands)
    return weight.shape[1] > 1 and is_last and weight.dtype != "f32"


def _blocks(kernel: Kernel) -> float:
    """Thread blocks at once: the tiles of a product, the channels of a batch norm."""
    family = family_of(kernel)
    if family == "matmul" and all(len(each.shape) >= 2 for each in kernel.operands[-2:]):
        left, right = kernel.operands[-2:]
        copies, rows, depth = math.prod(left.shape[:-2]), left.shape[-2], left.shape[-1]
        tiles = copies * math.ceil(rows / _TILE) * math.ceil(right.shape[-1] / _TILE)
        return float(max(tiles * max(1, depth // _STEP_OF_A_SPLIT), 1))
    if family in ("convolution", "convolution_backward_data"):
        groups, made = kernel.args[8], kernel.outputs[0]
        if groups > 1:
            return _UNLIMITED
        positions = made.shape[0] * math.prod(made.shape[2:])
        return float(max(math.ceil(positions / _TILE) * math.ceil(made.shape[1] / _TILE), 1))
    if family == "batch_norm" and not kernel.operands[0].is_channels_last:
        return float(max(kernel.operands[0].shape[1], 1))
    return _UNLIMITED
