"""Measures how the workers of a job slow each other down, computing and communicating."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from paceline.teams.backend import library_in_use
from paceline.teams.team import Team
from paceline.teams.workers import Workers

_PROBE_S = 1.0
_ROUNDS = 5
_MESSAGE_BYTES = 4 << 20
# Below this, a slower probe is noise; above the other, nothing would be left of computing.
_LEAST_INTERFERENCE, _MOST_INTERFERENCE = 0.02, 0.95


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkers:
    """What the workers of a job cost each other."""

    slowdown: float
    """How many times as long a worker computes when all of them do, against one alone."""
    inside_interference: float
    """The share of its speed that computing loses while the node's workers communicate."""
    between_interference: float
    """The same while all workers of all nodes do."""


def measure_workers(workers: Workers) -> MeasuredWorkers:
    """Compute alone, together, and while communicating. All workers call it, all get the answer."""
    unit = _probe()
    _units_s(unit, _PROBE_S / 4)
    together_s, slowdown = _slowdown(unit, workers)
    inside = max(workers.node_sizes) > 1
    between = workers.num_nodes > 1
    return MeasuredWorkers(
        slowdown=round(max(1.0, slowdown), 3),
        inside_interference=_interference(unit, together_s, workers.node, workers) if inside else 0,
        between_interference=(
            _interference(unit, together_s, workers.world, workers) if between else 0
        ),
    )


def _slowdown(unit: Callable[[], None], workers: Workers) -> tuple[float, float]:
    """Seconds a unit while all compute, and how many times that is what one alone takes."""
    world = workers.world
    alone_s, together_s = [], []
    for _ in range(_ROUNDS):
        own_s = _units_s(unit, _PROBE_S / 2) if world.rank == 0 else 0.0
        alone_s.append(world.agree(own_s, "sum"))
        together_s.append(world.agree(_units_s(unit, _PROBE_S / 2), "mean"))
    return statistics.median(together_s), statistics.median(together_s) / statistics.median(alone_s)


def _interference(unit: Callable[[], None], unit_s: float, team: Team, workers: Workers) -> float:
    """What computing loses while a team all-reduces, over what the all-reduces take by themselves.

    Where both need the same cores both get slower. The loss is put down to computing alone, over
    the time that communication takes if nothing is in its way: the sum of the work is the same.
    """
    tensor = torch.zeros(_MESSAGE_BYTES // 4, device="cuda" if library_in_use() == "nccl" else None)

    def all_reduce(count: int) -> None:
        for _ in range(count):
            team.all_reduce(tensor).wait()

    all_reduce(1)
    once_s = workers.world.agree(_timed_s(lambda: all_reduce(1)), "max")
    count = max(1, round(_PROBE_S / once_s))
    free_s = workers.world.agree(_timed_s(lambda: all_reduce(count)), "max")
    # The team is the main program's, but nobody else uses it meanwhile.
    pending = workers.background.run(lambda: all_reduce(count), device=tensor.device)
    num_units, begun = 0, time.perf_counter()
    while not pending.done():
        unit()
        num_units += 1
    took_s = time.perf_counter() - begun
    pending.wait()
    # A worker that is alone in its node has nothing to tell about the inside of nodes.
    is_member = team.size > 1
    lost = (took_s - num_units * unit_s) / free_s if is_member else 0.0
    share = workers.world.agree(lost, "sum") / workers.world.agree(float(is_member), "sum")
    return round(min(share, _MOST_INTERFERENCE), 3) if share > _LEAST_INTERFERENCE else 0.0


def _timed_s(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _units_s(unit: Callable[[], None], most_s: float) -> float:
    """Seconds a unit, over as many as there is time for."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < most_s:
        unit()
        count += 1
    return (time.perf_counter() - begun) / count


def _probe() -> Callable[[], None]:
    """A step of training: kernels that compute and kernels that copy, autograd, Python."""
    device = "cuda" if library_in_use() == "nccl" else "cpu"
    width = 256 if device == "cuda" else 32
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
