"""What the calls of a step, and those that a strategy adds, take on one kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.collectives import Numbers
from paceline.kernels.model import KernelModel
from paceline.kernels.timeline import Seconds
from paceline.steps import Call, Capture


@dataclass(frozen=True, kw_only=True)
class StepPrices:
    """What calls take on one kind of worker. Device times may have leading dimensions."""

    host_s: Seconds
    device_s: Seconds
    """Of every call of the captured step."""
    calls: Callable[[Sequence[Call]], tuple[Seconds, Seconds]] = field(repr=False)
    """Of calls that the strategy makes: on the host, on the device."""
    serial: bool
    """Whether the host computes what it issues, as a CPU does."""


def price_step(
    capture: Capture,
    kernel_model: KernelModel,
    *,
    slowdown: Numbers = 1.0,
    arithmetic: Numbers = 1.0,
    memory: Numbers = 1.0,
    host: float = 1.0,
) -> StepPrices:
    """Price every call of a captured step.

    Args:
        capture: The step.
        kernel_model: What kernels take.
        slowdown: How many times as long everything takes on this worker.
        arithmetic: How many times as fast the device computes as the kernel model's.
        memory: How many times as fast its memory is.
        host: How many times as fast the host issues.

    """
    factor = kernel_model.host.factors.get("optimizer", 1.0)

    def device_s(calls: Sequence[Call]) -> Seconds:
        return slowdown * device_calls_s(calls, kernel_model, arithmetic=arithmetic, memory=memory)

    def cost(calls: Sequence[Call]) -> tuple[Seconds, Seconds]:
        host_s = factor * np.array([kernel_model.host.bare_s(call) for call in calls])
        return slowdown / host * host_s, device_s(calls)

    return StepPrices(
        host_s=slowdown / host * kernel_model.host.calls_s(capture),
        device_s=device_s(capture.calls),
        calls=cost,
        serial=is_serial(kernel_model),
    )


def device_calls_s(
    calls: Sequence[Call], model: KernelModel, *, arithmetic: Numbers = 1.0, memory: Numbers = 1.0
) -> Seconds:
    """The device's seconds for every call, along the last axis.

    ``arithmetic`` and ``memory`` make the device so many times faster, as in
    :meth:`KernelModel.seconds`.
    """
    different = list(dict.fromkeys(kernel for call in calls for kernel in call.kernels))
    places = {kernel: place for place, kernel in enumerate(different)}
    seconds = model.seconds(different, arithmetic=arithmetic, memory=memory)
    counts = np.array([len(call.kernels) for call in calls], dtype=int)
    found = np.zeros((*seconds.shape[:-1], len(calls)))
    if different:
        in_order = seconds[..., [places[kernel] for call in calls for kernel in call.kernels]]
        has_kernels = counts > 0
        begins = (np.cumsum(counts) - counts)[has_kernels]
        found[..., has_kernels] = np.add.reduceat(in_order, begins, axis=-1) + model.gap_s
    return found


def is_serial(model: KernelModel) -> bool:
    """Whether host and device are the same processor."""
    return model.fitted is not None and model.fitted.facts.get("device_type") == "cpu"
