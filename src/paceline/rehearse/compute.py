"""What a captured step costs on one device: its timeline, its memory, how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.cluster.host import UNKNOWN_HOST, Host
from paceline.kernels.family import bytes_of, family_of, flop_of
from paceline.kernels.model import Estimate, KernelModel, Origin
from paceline.kernels.roofline import peak_flops
from paceline.kernels.timeline import Timeline, run_timeline
from paceline.rehearse.prediction import Bottleneck
from paceline.rehearse.step_prices import StepPrices, price_step
from paceline.steps import Capture, Kernel

_ORIGINS: tuple[Origin, ...] = ("table", "mlp", "roofline")
_SHARED_ERROR = 0.5  # errors of kernels are alike by half: a family that is off is off everywhere
_HARDLY_KNOWN = 0.45  # with recurrent layers of less, steps were at most 20 % off, memory 6 %
_LARGE_SHARE = 0.01  # of a device's memory
_STEP_ERROR = 0.015  # of steps whose kernels all were measured: of three, two were less off


@dataclass(frozen=True, kw_only=True)
class Compute:
    """One worker's step without any communication."""

    timeline: Timeline
    memory_bytes: int
    method: dict[str, float]
    bottleneck: Bottleneck
    uncertainty: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def compute_cost(
    capture: Capture,
    kernel_model: KernelModel,
    *,
    slowdown: float = 1.0,
    host: Host = UNKNOWN_HOST,
    prices: StepPrices | None = None,
) -> Compute:
    """Time a capture with a kernel model, on a worker that is ``slowdown`` times slower.

    Args:
        capture: What is timed.
        kernel_model: What its kernels take.
        slowdown: How many times as long everything takes.
        host: What issues it.
        prices: What :func:`price_step` says of all this, if it was asked already.

    """
    priced = prices or price_step(capture, kernel_model, slowdown=slowdown, host=host.speed)
    kernels = list(capture.kernels())
    estimates = dict(zip(kernels, kernel_model.estimate(kernels), strict=True))
    timeline = run_timeline(priced.host_s, priced.device_s, serial=priced.serial)
    return Compute(
        timeline=timeline,
        memory_bytes=_memory_bytes(capture, kernel_model),
        method=_method(kernels, estimates),
        bottleneck=_bottleneck(timeline, kernels, estimates, kernel_model, serial=priced.serial),
        uncertainty=_uncertainty(
            timeline, kernels, estimates, kernel_model, None if priced.serial else host.doubt
        ),
        warnings=(*capture.assumptions, *_warnings(kernel_model, estimates)),
        notes=() if priced.serial else _host_notes(timeline, host, kernels),
    )


def _memory_bytes(capture: Capture, model: KernelModel) -> int:
    spaces = {kernel: model.workspace_bytes(kernel) for kernel in set(capture.kernels())}
    peak = max(
        (
            call.live_bytes + max((spaces[kernel] for kernel in call.kernels), default=0)
            for call in capture.calls
        ),
        default=0,
    )
    library = model.fitted.facts.get("library_bytes", 0) if model.fitted is not None else 0
    return int(peak + library)


def _method(kernels: list[Kernel], estimates: dict[Kernel, Estimate]) -> dict[str, float]:
    totals = dict.fromkeys(_ORIGINS, 0.0)
    for kernel in kernels:
        totals[estimates[kernel].origin] += estimates[kernel].seconds
    total = sum(totals.values()) or 1.0
    return {origin: seconds / total for origin, seconds in totals.items()}


def _bottleneck(
    timeline: Timeline,
    kernels: list[Kernel],
    estimates: dict[Kernel, Estimate],
    model: KernelModel,
    *,
    serial: bool,
) -> Bottleneck:
    arithmetic_s = sum(
        estimates[kernel].seconds for kernel in kernels if _is_arithmetic(kernel, model)
    )
    # Beside a device the host limits if it takes longer; before it, if no part takes as long.
    others_s = max(arithmetic_s, timeline.device_s - arithmetic_s) if serial else timeline.device_s
    if timeline.host_s > others_s:
        return "host"
    return "arithmetic" if arithmetic_s > timeline.device_s / 2 else "memory bandwidth"


def _is_arithmetic(kernel: Kernel, model: KernelModel) -> bool:
    """Whether the roofline's slope or its flat part limits a kernel."""
    arithmetic_s = flop_of(kernel) / peak_flops(kernel, model.device)
    return arithmetic_s > bytes_of(kernel) / model.device.memory_bandwidth_bytes_per_s


def _uncertainty(
    timeline: Timeline,
    kernels: list[Kernel],
    estimates: dict[Kernel, Estimate],
    model: KernelModel,
    host_doubt: float | None,
) -> float:
    """One standard deviation of a step, relative; ``host_doubt`` is None where times add up."""
    doubts = [estimates[k].seconds * estimates[k].uncertainty for k in kernels]
    device = float(np.hypot(step_uncertainty(doubts, timeline.device_s), _STEP_ERROR))
    host = float(np.hypot(model.host.spread, host_doubt or 0.0))
    (other_s, other), (limit_s, own) = sorted(
        [(timeline.device_s, device), (timeline.host_s, host)]
    )
    if host_doubt is None or not limit_s:
        return own
    # The step is the longer of the two: if the other is late, it may be that one.
    return max(own, other_s * (1 + other) / limit_s - 1)


def step_uncertainty(doubts_s: Sequence[float], step_s: float) -> float:
    """Of a step, relative, from the doubts about each of its kernels in seconds."""
    doubts, total = np.array(doubts_s), step_s or 1.0
    alike, apart = doubts.sum() / total, float(np.sqrt((doubts**2).sum())) / total
    return float(np.hypot(_SHARED_ERROR * alike, apart))


def _host_notes(timeline: Timeline, host: Host, kernels: list[Kernel]) -> tuple[str, ...]:
    """Who waits for Python is told what helps, and how sure it is."""
    if timeline.host_s <= timeline.device_s:
        return ()
    unknown = (
        "; hosts differ by 30 % and more, and this one is not known: 'paceline measure host' on "
        "its machine says what to write as host into a cluster's file."
    )
    is_compiled = any(kernel.op == "fused" for kernel in kernels)
    helps = (
        "A larger batch or CUDA graphs"
        if is_compiled
        else ("A larger batch, torch.compile or CUDA graphs")
    )
    return (
        "The host limits what a worker computes: issuing it takes "
        f"{1e3 * timeline.host_s:.3g} ms and the device {1e3 * timeline.device_s:.3g} ms. "
        f"{helps} help{'.' if host.source else unknown}",
    )


def _warnings(model: KernelModel, estimates: dict[Kernel, Estimate]) -> tuple[str, ...]:
    found = []
    unknown = {kernel.op for kernel in estimates if family_of(kernel) is None}
    if unknown:
        ops = ", ".join(sorted(unknown))
        found.append(f"No kernel family knows {ops}: timed by roofline.")
    if model.fitted is not None:
        found += _unlike_measured_layers(model, estimates)
    dtypes = {operand.dtype for kernel in estimates for operand in kernel.operands}
    for half, dtype in (("bf16", "bf16"), ("fp16", "f16")):
        if dtype in dtypes and half not in model.device.flops:
            found.append(
                f"{model.device.name} has no arithmetic in {half}: products are timed as in fp32."
            )
    if model.is_carried:
        found.append(_how_far_off(model))
    if model.fitted is None:
        found.append("No kernels were measured for this device: everything is timed by roofline.")
    return tuple(found)


def _unlike_measured_layers(model: KernelModel, estimates: dict[Kernel, Estimate]) -> list[str]:
    """Who has a recurrent layer of an unusual size must not be told that it fits, and no more.

    cuDNN has several ways for them, whose workspaces differ threefold; of the networks in
    docs/evidence/kernels.md, those over the limit are the two that were far off.
    """
    large_bytes = _LARGE_SHARE * model.device.memory_bytes
    doubts = [
        each.uncertainty
        for kernel, each in estimates.items()
        if family_of(kernel) == "recurrent" and model.workspace_bytes(kernel) > large_bytes
    ]
    most = max(doubts, default=0.0)
    if most < _HARDLY_KNOWN:
        return []
    return [
        "No recurrent layers of such a size were measured: they may take "
        f"{1 + most:.1f} times as long, and may need more memory than is said."
    ]


def _how_far_off(model: KernelModel) -> str:
    """What is known of predictions for devices that were not measured."""
    assert model.fitted is not None
    name, source = model.device.name, model.fitted.device.name
    if not model.device.is_compared:
        return (
            f"{name} was not measured: kernels are transferred from {source} by its data "
            "sheet, and predictions for such devices were never compared with measurements."
        )
    return (
        f"{name} was not measured: kernels are transferred from {source}; such predictions "
        "were off by 6 to 11 % on average, for 465 networks on an RTX 3090 and for a few on each "
        "of fourteen other GPUs, from V100 to B200."
    )
