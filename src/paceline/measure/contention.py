"""Measures how much computing and communication slow each other down."""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from paceline.teams.backend import device_in_use
from paceline.teams.host import machine
from paceline.teams.workers import Workers

_MESSAGE_BYTES = 4 << 20
_COMMUNICATE_S = 0.6
# Where workers share cores, an all-reduce can take thirty times as long while they compute.
_OVERLAPPED_S = 0.06
_COMPUTE_S = 0.4
_LONGEST_S = 0.25
_ROUNDS = 3
# Below this, a loss is noise; above the other, nothing would be left of computing.
_LEAST_INTERFERENCE, _MOST_INTERFERENCE = 0.02, 0.95
_LEAST_BUSY_FACTOR = 1.1


@dataclass(frozen=True, kw_only=True)
class Contention:
    """How much computing and a team's all-reduces slow each other down."""

    interference: float
    """The share of its speed that computing loses while all-reduces are under way."""
    busy_factor: float
    """How many times as long an all-reduce takes while all workers compute."""


def measure_contention(
    unit: Callable[[], None],
    workers: Workers,
    team: Literal["node", "across", "world"],
    *,
    rounds: int = _ROUNDS,
) -> Contention:
    """Compute, communicate, and do both at once. All workers call it, and get the same answer.

    Args:
        unit: A piece of computing, such as a step of training.
        workers: The teams of this job.
        team: Who communicates; of ``"across"``, one worker of each node.
        rounds: How often it is measured; the median counts.
    """
    own = getattr(workers, team)
    is_member = team != "across" or workers.node.rank == 0
    tensor = torch.zeros(_MESSAGE_BYTES // 4, device=device_in_use())

    def all_reduce(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count if is_member else 0):
            own.all_reduce(tensor).wait()
        if tensor.is_cuda:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begun

    all_reduce(1)  # opens connections
    once_s = workers.world.agree(all_reduce(1), "max")
    if once_s > _LONGEST_S:  # over a slow link less is enough
        tensor = tensor[: max(1, int(tensor.numel() * _LONGEST_S / once_s))]
        once_s = workers.world.agree(all_reduce(1), "max")

    def communicate(seconds: float) -> Callable[[], float]:
        count = max(1, round(seconds / once_s))
        return lambda: all_reduce(count)

    shares = [_lost_share(unit, communicate(_COMMUNICATE_S), workers) for _ in range(rounds)]
    factors = [_stretched(unit, communicate(_OVERLAPPED_S), workers) for _ in range(rounds)]
    # A worker that is alone in its node has nothing to tell about the inside of nodes.
    is_counted = is_member and own.size > 1
    num_counted = workers.world.agree(float(is_counted), "sum")
    share = statistics.median(shares) if is_counted else 0.0
    share = workers.world.agree(share, "sum") / num_counted
    factor = statistics.median(factors)
    return Contention(
        interference=(
            round(min(share, _MOST_INTERFERENCE), 3) if share > _LEAST_INTERFERENCE else 0.0
        ),
        busy_factor=round(factor, 2) if factor > _LEAST_BUSY_FACTOR else 1.0,
    )


def _lost_share(
    unit: Callable[[], None], communicate: Callable[[], float], workers: Workers
) -> float:
    """The share of its speed that computing loses while others communicate."""
    on_gpu = device_in_use().type == "cuda"
    num_computing = 0 if on_gpu else _num_workers_here(workers) * torch.get_num_threads()
    # Where workers share cores, the scheduler decides who gets them when: how much of the cores
    # communication needs tells more than how much was computed meanwhile.
    if num_computing > (os.cpu_count() or 1):
        return _lost_to_cores(communicate, num_computing, workers)
    return _lost_while_overlapping(unit, communicate, workers)


def _stretched(
    unit: Callable[[], None], communicate: Callable[[], float], workers: Workers
) -> float:
    """How many times as long the slowest takes to communicate while all workers compute."""
    world = workers.world
    world.agree(0.0)
    alone_s = world.agree(communicate(), "max")
    took_s = 0.0

    def overlapped() -> None:
        nonlocal took_s
        took_s = communicate()
        # Workers that do not communicate compute until those of their node have finished.
        workers.background.node.agree(0.0)

    world.agree(0.0)
    pending = workers.background.run(overlapped, device=device_in_use())
    while not pending.done():
        unit()
    pending.wait()
    return world.agree(took_s, "max") / alone_s


def _lost_to_cores(communicate: Callable[[], float], num_computing: int, workers: Workers) -> float:
    """The share of their cores that ``num_computing`` threads lose to communication."""
    cores = float(os.cpu_count() or 1)
    workers.world.agree(0.0)
    busy_s, begun = _busy_s(), time.perf_counter()
    communicate()
    busy = (_busy_s() - busy_s) / (time.perf_counter() - begun)
    return 1.0 - min(1.0, max(0.0, cores - busy) / num_computing) / min(1.0, cores / num_computing)


def _busy_s() -> float:
    """Seconds that this machine's cores have worked so far, for programs and in the kernel."""
    times = psutil.cpu_times()
    # Only Linux counts interrupts apart.
    states = ("user", "nice", "system", "irq", "softirq")
    return sum(float(getattr(times, state, 0.0)) for state in states)


def _num_workers_here(workers: Workers) -> int:
    """Workers of this job on this machine, which may be several nodes of a lab."""
    own = torch.tensor([zlib.crc32(machine().encode())], dtype=torch.int64)
    everyone = torch.zeros(workers.world.size, dtype=torch.int64)
    workers.world.all_gather(everyone, own).wait()
    return int((everyone == own).sum())


def _lost_while_overlapping(
    unit: Callable[[], None], communicate: Callable[[], float], workers: Workers
) -> float:
    """The time that computing loses to communication, over what communication takes alone."""
    workers.world.agree(0.0)
    num_units, took_s = _computed(unit, lambda seconds: seconds > _COMPUTE_S)
    unit_s = took_s / num_units
    workers.world.agree(0.0)
    free_s = communicate()

    def overlapped() -> None:
        communicate()  # the team is the main program's, but nobody else uses it meanwhile

    workers.world.agree(0.0)
    pending = workers.background.run(overlapped, device=device_in_use())
    num_units, took_s = _computed(unit, lambda _: pending.done())
    return (took_s - num_units * unit_s) / free_s


def _computed(unit: Callable[[], None], is_enough: Callable[[float], bool]) -> tuple[int, float]:
    """How many units were computed, and in what time."""
    begun = time.perf_counter()
    count = 0
    while count == 0 or not is_enough(time.perf_counter() - begun):
        unit()
        count += 1
    return count, time.perf_counter() - begun
