"""Measures how the workers of a job slow each other down, computing and communicating."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from paceline.kernels.library import load_kernel_model, profiled_devices
from paceline.measure.contention import Contention, measure_contention
from paceline.measure.reference import reference_kernels
from paceline.measure.timer import CpuTimer, CudaTimer
from paceline.steps.kernel import Kernel
from paceline.teams.backend import device_in_use
from paceline.teams.workers import Workers

_PROBE_S = 0.4
_TOGETHER_S = 1.0
ROUNDS = 3
_MOST_ALONE = 2


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkers:
    """What the workers of a job cost each other."""

    slowdown: float
    """How many times as long workers compute, when all of them do, as their device's profile says,
    or as one worker alone if the device has no profile."""
    jitter: float
    """How much a worker's time for the same work varies: its standard deviation over its mean."""
    inside: Contention | None = None
    """How much computing and a node's all-reduces slow each other down; None if nodes have one
    worker."""
    between: Contention | None = None
    """The same for all-reduces of all workers of all nodes; None if there is one node."""
    lone: Contention | None = None
    """The same for all-reduces of one worker of each node; None if nodes have one worker."""


@dataclass(frozen=True, kw_only=True)
class KnownStep:
    """A step of training on one worker, and how long it takes by the profile of its device."""

    run: Callable[[], None]
    expected_s: float


def measure_workers(
    workers: Workers,
    *,
    device: str = "",
    step: KnownStep | None = None,
    rounds: int = ROUNDS,
) -> MeasuredWorkers:
    """Compute alone, together, and while communicating. All workers call it, all get the answer.

    Args:
        workers: The teams of this job.
        device: The workers' device. If its profile comes with paceline, they are compared with it.
        step: The step to compare by: the one that is to be predicted. By default, some kernels.
        rounds: How often everything is measured; a median or mean of them counts.
    """
    unit = _probe() if step is None else step.run
    _probed(unit)
    if step is None:
        slowdown, jitter = _slowdown(unit, workers, _reference(device), rounds)
    else:
        slowdown, jitter = _slowdown_of_step(step, workers, rounds)
    has_inside, has_between = max(workers.node_sizes) > 1, workers.num_nodes > 1

    def contention(
        team: Literal["node", "across", "world"], *, is_there: bool
    ) -> Contention | None:
        return measure_contention(unit, workers, team, rounds=rounds) if is_there else None

    return MeasuredWorkers(
        slowdown=round(slowdown, 3),
        jitter=round(jitter, 3),
        inside=contention("node", is_there=has_inside),
        between=contention("world", is_there=has_between),
        lone=contention("across", is_there=has_inside and has_between),
    )


def is_compared_with_profile(device: str) -> bool:
    """Whether :func:`measure_workers` compares this job with that device's profile."""
    return bool(_reference(device))


def _slowdown(
    unit: Callable[[], None], workers: Workers, reference: Mapping[Kernel, float], rounds: int
) -> tuple[float, float]:
    """How many times as long workers compute while all do, and how much that varies.

    The first is how long a unit takes over the processor's time that it gets, times how much more
    of that workers need than their profile says, or than alone.
    """
    together = _computed_together(unit, workers, rounds)
    needs = (
        _needs_of_profile(reference, workers, rounds)
        if reference
        else _needs_alone(unit, workers, rounds)
    )
    return together.took_s / together.used_s * needs, together.relative_jitter


def _slowdown_of_step(step: KnownStep, workers: Workers, rounds: int) -> tuple[float, float]:
    """How many times as long the step takes while all compute as its profile says; and jitter."""
    together = _computed_together(step.run, workers, rounds)
    return together.took_s / step.expected_s, together.relative_jitter


def _computed_together(unit: Callable[[], None], workers: Workers, rounds: int) -> _Probed:
    """What a unit takes while all workers compute: until all have done as many of them.

    Workers differ, and in training all wait for the slowest. Where they share cores, a scheduler
    lets some wait for long, but those who are through leave their cores to them.
    """
    world = workers.world
    world.agree(0.0)
    first = _probed(unit)
    count = max(2, round(_TOGETHER_S / world.agree(first.took_s, "mean")))
    took, used = [], []
    for _ in range(rounds):
        world.agree(0.0)
        begun, before = time.perf_counter(), _processor_s()
        for _ in range(count):
            unit()
        # At the same moments: a machine is faster at one and slower at another.
        used_s, took_s = _processor_s() - before, time.perf_counter() - begun
        used.append(world.agree(used_s, "mean"))
        took.append(world.agree(took_s, "max"))
    return _Probed(
        took_s=statistics.median(took) / count,
        used_s=statistics.median(used) / count,
        jitter=world.agree(first.jitter, "mean"),
    )


def _needs_alone(unit: Callable[[], None], workers: Workers, rounds: int) -> float:
    """The processor's time that a unit needs while all compute, over that while one does.

    Processes of one program differ by themselves, so each is compared with itself, a few of them
    in turn. Nobody gets faster by contention: less than 1 is noise.
    """
    world = workers.world
    ratios = []
    for rank in range(min(world.size, _MOST_ALONE)):
        for _ in range(rounds):
            alone_s = _probed(unit).used_s if world.rank == rank else 0.0
            world.agree(0.0)
            used_s = _probed(unit).used_s
            ratios.append(world.agree(used_s / alone_s if world.rank == rank else 0.0, "sum"))
    return max(1.0, statistics.median(ratios))


def _needs_of_profile(reference: Mapping[Kernel, float], workers: Workers, rounds: int) -> float:
    """The processor's time that kernels need while all compute, over what the profile says."""
    is_gpu = device_in_use().type == "cuda"
    timer = CudaTimer() if is_gpu else CpuTimer(clock=time.process_time)
    ratios = []
    for _ in range(rounds):
        workers.world.agree(0.0)
        own = [timer.time(kernel).seconds / seconds for kernel, seconds in reference.items()]
        ratios.append(workers.world.agree(statistics.median(own), "mean"))
    return statistics.median(ratios)


def _reference(device: str) -> dict[Kernel, float]:
    """Kernels of the device's profile, if the workers compute on that kind of processor."""
    if device not in profiled_devices():
        return {}
    model = load_kernel_model(device)
    assert model.fitted is not None
    is_right = model.fitted.facts.get("device_type") == device_in_use().type
    return reference_kernels(device) if is_right else {}


@dataclass(frozen=True, kw_only=True)
class _Probed:
    """Seconds per unit: on the clock, and of the processor (of a GPU: the clock again)."""

    took_s: float
    used_s: float
    jitter: float
    """How much units differ: the standard deviation of ``used_s`` over its mean."""

    @property
    def relative_jitter(self) -> float:
        """The same over ``took_s``: who is through leaves the core to others, who catch up."""
        return self.jitter * self.used_s / self.took_s


def _processor_s() -> float:
    """Seconds that this process has computed so far; with a GPU the clock's."""
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def _probed(unit: Callable[[], None]) -> _Probed:
    used: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < _PROBE_S or len(used) < 2:
        before = _processor_s()
        unit()
        used.append(_processor_s() - before)
    return _Probed(
        took_s=(time.perf_counter() - begun) / len(used),
        used_s=statistics.mean(used),
        jitter=statistics.stdev(used) / statistics.mean(used),
    )


def _probe() -> Callable[[], None]:
    """A step of training: kernels that compute and kernels that copy, autograd, Python."""
    device = device_in_use()
    width = 256 if device.type == "cuda" else 32
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * width, 256),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.rand(16, 3, 32, 32, device=device)

    def unit() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(images).square().mean())
        optimizer.step()
        if images.is_cuda:
            torch.cuda.synchronize()

    return unit
