"""Measures how the workers of a job slow each other down, computing and communicating."""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from paceline.kernels.library import load_kernel_model, profiled_devices
from paceline.kernels.reference import reference_kernels
from paceline.kernels.timer import CpuTimer, CudaTimer
from paceline.steps.kernel import Kernel
from paceline.teams.backend import device_in_use
from paceline.teams.team import Team
from paceline.teams.workers import Workers

_PROBE_S = 0.4
_TOGETHER_S = 1.0
_ROUNDS = 3
_MOST_ALONE = 2
_COMMUNICATE_S = 0.6
_MESSAGE_BYTES = 4 << 20
# Below this, a loss is noise; above the other, nothing would be left of computing.
_LEAST_INTERFERENCE, _MOST_INTERFERENCE = 0.02, 0.95


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkers:
    """What the workers of a job cost each other."""

    slowdown: float
    """How many times as long workers compute, when all of them do, as their device's profile says;
    of a device without a profile: as one worker alone."""
    jitter: float
    """How much a worker's time for the same work varies: its standard deviation over its mean."""
    inside_interference: float
    """The share of its speed that computing loses while the node's workers communicate."""
    between_interference: float
    """The same while all workers of all nodes do."""
    lone_interference: float | None = None
    """The same while one worker of each node does; None where nodes have one."""


@dataclass(frozen=True, kw_only=True)
class KnownStep:
    """A step of training on one worker, and how long it takes by the profile of its device."""

    run: Callable[[], None]
    expected_s: float


def measure_workers(
    workers: Workers, *, device: str = "", step: KnownStep | None = None
) -> MeasuredWorkers:
    """Compute alone, together, and while communicating. All workers call it, all get the answer.

    ``device`` is what the workers are said to be. If its profile comes with paceline, they are
    compared with that: by ``step``, the very one that is to be predicted, or else by kernels.
    """
    unit = _probe() if step is None else step.run
    _probed(unit)
    if step is None:
        slowdown, jitter = _slowdown(unit, workers, _reference(device))
    else:
        slowdown, jitter = _slowdown_of_step(step, workers)
    inside = max(workers.node_sizes) > 1
    between = workers.num_nodes > 1
    return MeasuredWorkers(
        slowdown=round(slowdown, 3),
        jitter=round(jitter, 3),
        inside_interference=_interference(unit, workers.node, workers) if inside else 0.0,
        between_interference=_interference(unit, workers.world, workers) if between else 0.0,
        lone_interference=(
            _interference(unit, workers.across, workers, is_member=workers.node.rank == 0)
            if inside and between
            else None
        ),
    )


def is_compared_with_profile(device: str) -> bool:
    """Whether :func:`measure_workers` compares this job with that device's profile."""
    return bool(_reference(device))


def _slowdown(
    unit: Callable[[], None], workers: Workers, reference: Mapping[Kernel, float]
) -> tuple[float, float]:
    """How many times as long workers compute while all do, and how much that varies.

    The first is how long a unit takes over the processor's time that it gets, times how much more
    of that workers need than their profile says, or than alone.
    """
    together = _computed_together(unit, workers)
    needs = _needs_of_profile(reference, workers) if reference else _needs_alone(unit, workers)
    return together.took_s / together.used_s * needs, together.relative_jitter


def _slowdown_of_step(step: KnownStep, workers: Workers) -> tuple[float, float]:
    """How many times as long the step takes while all compute as its profile says; and jitter."""
    together = _computed_together(step.run, workers)
    return together.took_s / step.expected_s, together.relative_jitter


def _computed_together(unit: Callable[[], None], workers: Workers) -> _Probed:
    """What a unit takes while all workers compute: until all have done as many of them.

    Workers differ, and in training all wait for the slowest. Where they share cores, a scheduler
    lets some wait for long, but those who are through leave their cores to them.
    """
    world = workers.world
    world.agree(0.0)
    first = _probed(unit)
    used_s, jitter = world.agree(first.used_s, "mean"), world.agree(first.jitter, "mean")
    count = max(2, round(_TOGETHER_S / world.agree(first.took_s, "mean")))
    times = []
    for _ in range(_ROUNDS):
        world.agree(0.0)
        begun = time.perf_counter()
        for _ in range(count):
            unit()
        times.append(world.agree(time.perf_counter() - begun, "max"))
    return _Probed(took_s=statistics.median(times) / count, used_s=used_s, jitter=jitter)


def _needs_alone(unit: Callable[[], None], workers: Workers) -> float:
    """The processor's time that a unit needs while all compute, over that while one does.

    Processes of one program differ by themselves, so each is compared with itself, a few of them
    in turn. Nobody gets faster by company: less than 1 is noise.
    """
    world = workers.world
    ratios = []
    for rank in range(min(world.size, _MOST_ALONE)):
        for _ in range(_ROUNDS):
            alone_s = _probed(unit).used_s if world.rank == rank else 0.0
            world.agree(0.0)
            used_s = _probed(unit).used_s
            ratios.append(world.agree(used_s / alone_s if world.rank == rank else 0.0, "sum"))
    return max(1.0, statistics.median(ratios))


def _needs_of_profile(reference: Mapping[Kernel, float], workers: Workers) -> float:
    """The processor's time that kernels need while all compute, over what the profile says."""
    is_gpu = device_in_use().type == "cuda"
    timer = CudaTimer() if is_gpu else CpuTimer(clock=time.process_time)
    ratios = []
    for _ in range(_ROUNDS):
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
    """Seconds a unit: on the clock, and of the processor (of a GPU: the clock again)."""

    took_s: float
    used_s: float
    jitter: float
    """How much units differ: the standard deviation of ``used_s`` over its mean."""

    @property
    def relative_jitter(self) -> float:
        """The same over ``took_s``: who is through leaves the core to others, who catch up."""
        return self.jitter * self.used_s / self.took_s


def _probed(unit: Callable[[], None]) -> _Probed:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    used: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < _PROBE_S or len(used) < 2:
        before = clock()
        unit()
        used.append(clock() - before)
    return _Probed(
        took_s=(time.perf_counter() - begun) / len(used),
        used_s=statistics.mean(used),
        jitter=statistics.stdev(used) / statistics.mean(used),
    )


def _interference(
    unit: Callable[[], None], team: Team, workers: Workers, *, is_member: bool = True
) -> float:
    """The share of its speed that computing loses while a team's members all-reduce.

    Where communication gets slower as well, because both need the same cores, that is put down to
    computing: what counts is how much later both are through.
    """
    tensor = torch.zeros(_MESSAGE_BYTES // 4, device=device_in_use())

    def all_reduce(count: int) -> None:
        for _ in range(count if is_member else 0):
            team.all_reduce(tensor).wait()

    all_reduce(1)
    once_s = workers.world.agree(_timed_s(lambda: all_reduce(1)), "max")
    count = max(1, round(_COMMUNICATE_S / once_s))
    num_computing = 0 if tensor.is_cuda else _num_workers_here(workers) * torch.get_num_threads()

    def lost() -> float:
        # Where workers have to share cores, an all-reduce beside computing takes many times as
        # long, and no two times as long: what it needs of the cores tells more.
        if num_computing > (os.cpu_count() or 1):
            return _lost_to_cores(lambda: all_reduce(count), num_computing, workers)
        return _lost_beside(unit, lambda: all_reduce(count), workers)

    share = statistics.median(lost() for _ in range(_ROUNDS))
    # A worker that is alone in its node has nothing to tell about the inside of nodes.
    is_counted = is_member and team.size > 1
    num_counted = workers.world.agree(float(is_counted), "sum")
    share = workers.world.agree(share if is_counted else 0.0, "sum") / num_counted
    return round(min(share, _MOST_INTERFERENCE), 3) if share > _LEAST_INTERFERENCE else 0.0


def _lost_to_cores(communicate: Callable[[], None], num_computing: int, workers: Workers) -> float:
    """Communication takes cores, which ``num_computing`` threads that share them then miss."""
    cores = float(os.cpu_count() or 1)
    workers.world.agree(0.0)
    busy_s, begun = _busy_s(), time.perf_counter()
    communicate()
    busy = (_busy_s() - busy_s) / (time.perf_counter() - begun)
    return 1.0 - min(1.0, max(0.0, cores - busy) / num_computing) / min(1.0, cores / num_computing)


def _busy_s() -> float:
    """Seconds that this machine's cores have worked so far, for programs and in the kernel."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _num_workers_here(workers: Workers) -> int:
    """Workers of this job on this machine, which may be several nodes of a lab."""
    name = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    own = torch.tensor([zlib.crc32(name.encode())], dtype=torch.int64)
    everyone = torch.zeros(workers.world.size, dtype=torch.int64)
    workers.world.all_gather(everyone, own).wait()
    return int((everyone == own).sum())


def _lost_beside(
    unit: Callable[[], None], communicate: Callable[[], None], workers: Workers
) -> float:
    """What computing loses beside communication, over what that takes by itself."""
    workers.world.agree(0.0)
    unit_s = _probed(unit).took_s
    workers.world.agree(0.0)
    free_s = _timed_s(communicate)
    workers.world.agree(0.0)
    # The team is the main program's, but nobody else uses it meanwhile.
    pending = workers.background.run(communicate, device=device_in_use())
    num_units, begun = 0, time.perf_counter()
    while not pending.done():
        unit()
        num_units += 1
    return (time.perf_counter() - begun - num_units * unit_s) / free_s


def _timed_s(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


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
