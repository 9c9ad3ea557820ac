"""Runs a step for real, on the device where its model is, and times it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.optim import Optimizer

from paceline.steps.step import AUTOCAST_DTYPES, Step
from paceline.steps.tensors import tensors_in


@dataclass(frozen=True, kw_only=True)
class StepMeasured:
    """What a real step took."""

    step_s: float
    """Median over rounds."""
    spread: float
    """(slowest round - fastest round) / median."""
    host_s: float
    """What the host needed to issue a step while the device was not in its way."""
    busy_s: float
    """How long a GPU was busy with a step's kernels, by CUDA's own profiler, which may run beside
    each other; 0 on a CPU."""
    peak_bytes: int
    """The most memory that tensors and workspaces held at once; 0 on a CPU."""


def measure_step(step: Step, *, rounds: int = 5, target_s: float = 0.3) -> StepMeasured:
    """Train a few steps on the device where the step's model is, and time them.

    Args:
        step: A step whose model and batch are on the same device.
        rounds: How often to time; the median counts.
        target_s: How long a round should take.
    """
    run = training_loop(step)
    device = next(step.model.parameters()).device
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else _nothing
    for _ in range(3):
        run()
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    quick_s = _timed(run, 1, wait)
    count = max(1, min(50, round(target_s / quick_s)))
    times = [_timed(run, count, wait) for _ in range(rounds)]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    median = statistics.median(times)
    return StepMeasured(
        step_s=median,
        spread=(max(times) - min(times)) / median,
        host_s=statistics.median(_issued(run, wait) for _ in range(5)),
        busy_s=_busy_s(run) if device.type == "cuda" else 0.0,
        peak_bytes=peak,
    )


def training_loop(step: Step) -> Callable[[], None]:
    """What trains one step, as a user's loop would, on the device where the model is."""
    model = step.model.train()
    if step.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for tensor in tensors_in(step.inputs):
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    device = next(model.parameters()).device
    given = step.optimizer
    optimizer = given if isinstance(given, Optimizer) else step.make_optimizer(model.parameters())
    dtype = AUTOCAST_DTYPES.get(step.precision)
    torch.backends.cuda.matmul.allow_tf32 = step.precision == "tf32"

    def run() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype) if dtype else nullcontext():
            loss = step.compute_loss(model, step.inputs, step.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def _timed(run: Callable[[], None], count: int, wait: Callable[[], Any]) -> float:
    wait()
    begun = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - begun) / count


def _issued(run: Callable[[], None], wait: Callable[[], Any]) -> float:
    wait()
    begun = time.perf_counter()
    run()
    took = time.perf_counter() - begun
    wait()
    return took


def _busy_s(run: Callable[[], None]) -> float:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    return covered_s(
        (each.time_range.start, each.time_range.end)
        for each in profiler.events()
        # A name that somebody gave to a stretch of time covers its rests, too.
        if each.device_type != DeviceType.CPU and not each.is_user_annotation
    )


def covered_s(spans_us: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans is under way: kernels may run beside each other.

    Args:
        spans_us: Beginnings and ends in microseconds.
    """
    covered_us, until_us = 0.0, -math.inf
    for begin_us, end_us in sorted(spans_us):
        covered_us += max(0.0, end_us - max(begin_us, until_us))
        until_us = max(until_us, end_us)
    return covered_us / 1e6


def _nothing() -> None:
    pass
