"""Measures the first steps of a job: computing, then exchanges, then both at once.

For a few steps gradients are averaged as ever, but only when the backward pass is over, so that
each can be timed by itself. The steps after that overlap, as synchronous training does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from paceline.auto.figures import Computing
from paceline.measure.links import LinkTimes, row_s, time_links
from paceline.teams import Pending, Team, Workers
from paceline.teams.backend import device_in_use

Stage = Literal["warm-up", "separate", "together", "measured"]
_STAGES: tuple[tuple[Stage, int], ...] = (("warm-up", 2), ("separate", 4), ("together", 6))
NUM_STEPS = sum(count for _, count in _STAGES)
"""Steps until all is measured."""

_PROBE_BYTES = 1 << 16
_LEAST_LARGEST_BYTES, _MOST_LARGEST_BYTES = 1 << 18, 1 << 22
_LARGEST_S = 0.1
_SECONDS_PER_SIZE = 0.03
_PROBE_S = 0.02
_NUM_PROBES = 4
_OTHER_PROBE = 1.4
_COPY_BYTES = 1 << 22
_NUM_COPIES = 5
_MOST_JITTER = 0.3
_LEAST_SAMPLES = 2


def stage_of(num_steps: int) -> Stage:
    """What is measured in the step after so many."""
    for stage, count in _STAGES:
        if num_steps < count:
            return stage
        num_steps -= count
    return "measured"


class Later(Pending):
    """A collective that begins when it is waited for."""

    def __init__(self, begin: Callable[[], Pending | None]) -> None:
        self._begin: Callable[[], Pending | None] | None = begin

    def wait(self) -> None:
        """Begin, and block until the result is there."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            pending = begin()
            if pending is not None:
                pending.wait()

    def done(self) -> bool:
        """Whether it was waited for."""
        return self._begin is None


class StepTimer:
    """When what happened in this worker's steps; on a GPU, when the device was there.

    Args:
        clock: Seconds since some moment.
        device: Where the model is.
    """

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        self._clock = clock
        self._device = device
        self._marks: list[tuple[str, float]] = []
        self.separate_s: list[list[float]] = []
        """Of each separate step: to the first bucket, from each to the next, the rest, and the
        optimizer."""
        self.together_s: list[float] = []
        """Of each step in which computing and exchanges overlap: all of it."""

    def begin_step(self) -> None:
        """A step begins: the one before is over."""
        self._marks = [("begin", self.now())]

    def mark(self, moment: str) -> None:
        """Something happens in this step."""
        self._marks.append((moment, self.now()))

    def now(self) -> float:
        """The time; what the device was given is done by then."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()

    def end_step(self, stage: Stage) -> None:
        """The optimizer has stepped."""
        end_s = self.now()
        (_, begun_s), *others = self._marks
        if stage == "together":
            self.together_s.append(end_s - begun_s)
        elif stage == "separate":
            buckets = [at_s for moment, at_s in others if moment == "bucket"]
            ends = [at_s for moment, at_s in others if moment == "backward"][:1]
            exchanged = [at_s for moment, at_s in others if moment == "exchanged"][-1:]
            if buckets and ends and exchanged:  # else a step without a backward pass
                ready = [begun_s, *buckets, *ends]
                parts = [after - before for before, after in pairwise(ready)]
                self.separate_s.append([*parts, end_s - exchanged[0]])

    def copied_bytes_per_s(self, world: Team) -> float:
        """Bytes read and written per second while all workers copy at once, as they call this."""
        source = torch.zeros(_COPY_BYTES // 4, device=self._device)
        target = torch.empty_like(source)
        target.copy_(source)
        world.barrier()
        begun_s = self.now()
        for _ in range(_NUM_COPIES):
            target.copy_(source)
        return 2 * _COPY_BYTES * _NUM_COPIES / max(self.now() - begun_s, 1e-9)

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far."""
        return {"separate_s": self.separate_s, "together_s": self.together_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was saved."""
        self.separate_s = [list(parts) for parts in state["separate_s"]]
        self.together_s = list(state["together_s"])


def agree_on_steps(timer: StepTimer, workers: Workers) -> tuple[Computing, float] | None:
    """What the workers' steps took, and synchronous ones. All workers call it, all get the same.

    Training waits for the slowest node, so that one's steps count. None if a worker has not
    measured enough: its steps had no backward pass.
    """
    is_enough = len(timer.separate_s) >= _LEAST_SAMPLES and timer.together_s
    own = {
        "parts": [statistics.median(part) for part in zip(*timer.separate_s, strict=True)],
        "totals": [sum(parts) for parts in timer.separate_s],
        "together": statistics.median(timer.together_s) if timer.together_s else 0.0,
        "copied": timer.copied_bytes_per_s(workers.world),
        "is_enough": bool(is_enough),
    }
    told = gathered(own, workers.world)
    if not all(each["is_enough"] for each in told):
        return None
    nodes = [[told[rank] for rank in ranks] for ranks in workers.ranks_by_node]
    by_node = [_mean_parts([each["parts"] for each in node]) for node in nodes]
    slowest = max(by_node, key=sum)
    jitters = [statistics.stdev(each["totals"]) / statistics.mean(each["totals"]) for each in told]
    forward_s, *between_s, rest_s, optimizer_s = slowest
    computing = Computing(
        forward_s=forward_s,
        buckets_s=(0.0, *between_s),
        rest_s=rest_s,
        optimizer_s=optimizer_s,
        jitter=min(statistics.median(jitters), _MOST_JITTER),
        copied_bytes_per_s=min(each["copied"] for each in told),
    )
    return computing, max(each["together"] for each in told)


def _mean_parts(parts: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.mean(part) for part in zip(*parts, strict=True)]


def measure_links_briefly(workers: Workers) -> LinkTimes:
    """Time the job's collectives, in sizes that a tenth of a second is enough for.

    All workers call it at the same step, while nothing is under way; all get the same times.
    """
    affordable = int(_PROBE_BYTES / _best_s(workers, _PROBE_BYTES) * _LARGEST_S)
    largest = min(max(affordable, _LEAST_LARGEST_BYTES), _MOST_LARGEST_BYTES)
    sizes = (1 << 14, largest // 8, largest)
    return time_links(workers, sizes_bytes=sizes, seconds_per_size=_SECONDS_PER_SIZE)


@dataclass(frozen=True)
class Probe:
    """One size of message and how long it took: a quick look at whether the links are the same."""

    num_bytes: int
    took_s: float

    def is_other(self, now: Probe) -> bool:
        """Whether the links have changed."""
        return max(self.took_s, now.took_s) > _OTHER_PROBE * min(self.took_s, now.took_s)


def probe_links(workers: Workers, num_bytes: int | None = None) -> Probe:
    """Time one all-reduce of all workers, the best of a few. All call it, all get the same.

    Args:
        workers: The teams of this job; nothing is under way.
        num_bytes: The size of the message; by default one that takes about 20 ms.
    """
    if num_bytes is None:
        rate = _PROBE_BYTES / _best_s(workers, _PROBE_BYTES)
        num_bytes = min(max(int(rate * _PROBE_S), _PROBE_BYTES), _MOST_LARGEST_BYTES)
    return Probe(num_bytes, _best_s(workers, num_bytes))


def _best_s(workers: Workers, num_bytes: int) -> float:
    message = torch.zeros(num_bytes // 4, device=device_in_use())
    return min(row_s(workers.world, "all_reduce", message, 1) for _ in range(_NUM_PROBES))


def gathered(own: Any, team: Team) -> list[Any]:
    """Everybody's plain values, by rank."""
    return [json.loads(part) for part in team.gather(json.dumps(own).encode())]
