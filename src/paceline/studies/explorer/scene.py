"""One cluster with one device: step times over workers and links, as far as they are known.

A slab has the step times of one strategy for all numbers of workers and all links, at one batch
size and one device speed. One play times a slab, so moving along workers and links costs nothing;
neighbours along the other axes are timed ahead. Where a slab is not known yet, it is estimated:
what a worker needs alone, which is known at once, and the waiting of the nearest slab.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.cluster import Cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse.summarise import link_uncertainty
from paceline.steps import Step
from paceline.studies.axes import Axes
from paceline.studies.explorer.question import Sliders
from paceline.studies.points import Array, Points
from paceline.studies.timing import RESOURCES, Timing


class Slab(NamedTuple):
    """Which slab: a strategy, and the places of three sliders."""

    strategy: str
    batch: int
    arithmetic: int
    memory_bandwidth: int


@dataclass(frozen=True, kw_only=True)
class Times:
    """Step times over workers, at one link."""

    step_s: Array
    alone_s: float
    is_exact: bool


@dataclass(kw_only=True)
class Scene:
    """What is known about a step on one cluster with one device."""

    step: Step
    cluster: Cluster
    kernel_model: KernelModel
    axes: Axes
    steps: dict[int, Step] = field(default_factory=dict)
    """The step by batch size: scenes share their captures."""

    def __post_init__(self) -> None:
        self.timing = Timing(
            step=self.step,
            cluster=self.cluster,
            kernel_model=self.kernel_model,
            jitter=self.cluster.node_kinds[0].jitter,
            _steps=self.steps,
        )
        self.play_s: dict[tuple[str, int], float] = {}
        """How long the last play took, by strategy and batch."""
        self.left_out: dict[str, str] = {}
        """Strategies that this cluster cannot run, and why."""
        self.bad_batches: dict[int, str] = {}
        """Batch sizes that the model cannot run on, and why."""
        self._slabs: dict[Slab, Array] = {}
        self._alone: dict[int, Array] = {}
        self._gains: dict[tuple[str, Sliders], Mapping[str, float]] = {}
        self._lock = threading.Lock()

    def has_batch(self, place: int) -> bool:
        """Whether the step with that batch size was captured."""
        return place in self._alone

    def prepare_batch(self, place: int) -> None:
        """Capture the step with another batch size, and time it alone on all devices."""
        batch = self.axes.batch[place]
        try:
            self.timing.compute_of(batch)
        except ValueError as problem:
            self.bad_batches[place] = f"batch {batch:,}: {problem}"
            return
        speeds = [(a, m) for a in self.axes.arithmetic for m in self.axes.memory_bandwidth]
        arithmetic, memory = (np.array(values) for values in zip(*speeds, strict=True))
        alone_s = self.timing.alone_s(self._points("", place, arithmetic, memory, workers=1))
        self._alone[place] = alone_s.reshape(
            len(self.axes.arithmetic), len(self.axes.memory_bandwidth)
        )

    def knows(self, slab: Slab) -> bool:
        """Whether a slab was timed."""
        return slab in self._slabs

    def prepare(self, slab: Slab) -> None:
        """Time a slab; the first one of a strategy records it, which takes seconds."""
        points, num_links = self._slab_points(slab), len(self.axes.link)
        if (slab.strategy, slab.batch) not in self.play_s:
            # Recording is no play: it is done with one link first, while others may play.
            self.timing.steps_s(points.take(np.arange(0, len(points), num_links)))
        with self._lock:
            self._play(slab, points)

    def prepare_at_once(self, slab: Slab, *, within_s: float) -> None:
        """Time a slab if that is a matter of so many seconds; otherwise do nothing."""
        is_short = self.play_s.get((slab.strategy, slab.batch), np.inf) < within_s
        if is_short and self._lock.acquire(timeout=within_s / 2):
            try:
                self._play(slab, self._slab_points(slab))
            finally:
                self._lock.release()

    def _play(self, slab: Slab, points: Points) -> None:
        begin = time.perf_counter()
        steps_s = self.timing.steps_s(points)
        self.play_s[slab.strategy, slab.batch] = time.perf_counter() - begin
        self._slabs[slab] = steps_s.reshape(len(self.axes.workers), len(self.axes.link))

    def _slab_points(self, slab: Slab) -> Points:
        workers, link = np.array(self.axes.workers), np.array(self.axes.link)
        count = len(workers) * len(link)
        return self._points(
            slab.strategy,
            slab.batch,
            np.full(count, self.axes.arithmetic[slab.arithmetic]),
            np.full(count, self.axes.memory_bandwidth[slab.memory_bandwidth]),
            workers=np.repeat(workers, len(link)),
            link=np.tile(link, len(workers)),
        )

    def times(self, slab: Slab, link: int) -> Times | None:
        """Step times at one link, estimated from the nearest slab if need be; None for none."""
        known = self._slabs.get(slab)
        if known is not None:
            return Times(step_s=known[:, link], alone_s=self.alone_s(slab), is_exact=True)
        others = [each for each in list(self._slabs) if each.strategy == slab.strategy]
        if not others:
            return None
        nearest = min(others, key=lambda each: _distance(each, slab))
        alone_s = self.alone_s(slab)
        waiting_s = np.maximum(self._slabs[nearest][:, link] - self.alone_s(nearest), 0.0)
        return Times(step_s=alone_s + waiting_s, alone_s=alone_s, is_exact=False)

    def alone_s(self, slab: Slab) -> float:
        """Seconds of a worker that waits for nobody; in proportion where not captured yet."""
        places = list(self._alone)
        own = min(places, key=lambda place: abs(place - slab.batch))
        seconds = float(self._alone[own][slab.arithmetic, slab.memory_bandwidth])
        return seconds * self.axes.batch[slab.batch] / self.axes.batch[own]

    def doubts(self, batch: int) -> dict[str, float]:
        """About kernels and about links: relative, one standard deviation."""
        nearest = min(self._alone, key=lambda place: abs(place - batch))
        own = self.timing.compute_of(self.axes.batch[nearest]).uncertainty
        return {"kernels": own, "links": link_uncertainty(self.cluster)}

    def memory_bytes(self, batch: int) -> int | None:
        """Peak memory of one worker; None while the batch size is not captured."""
        if not self.has_batch(batch):
            return None
        return self.timing.compute_of(self.axes.batch[batch]).memory_bytes

    def gains(self, strategy: str, sliders: Sliders) -> Mapping[str, float] | None:
        """What a tenth more of each resource saves; None while that is not known."""
        return self._gains.get((strategy, sliders))

    def prepare_gains(self, strategy: str, sliders: Sliders) -> None:
        """Time one point with a tenth more of each resource."""
        point = self._points(
            strategy,
            sliders.batch,
            np.array([sliders.value(self.axes, "arithmetic")]),
            np.array([sliders.value(self.axes, "memory_bandwidth")]),
            workers=np.array([self.axes.workers[sliders.workers]]),
            link=np.array([self.axes.link[sliders.link]]),
        )
        with self._lock:
            own = self.timing.timed(point)
            found: dict[str, float] = {
                name: 1
                - float(self.timing.timed(point, name, like=own).steps_s[0] / own.steps_s[0])
                for name in RESOURCES
            }
        self._gains[strategy, sliders] = found

    def _points(
        self,
        strategy: str,
        batch: int,
        arithmetic: Array,
        memory_bandwidth: Array,
        *,
        workers: Array | int,
        link: Array | None = None,
    ) -> Points:
        count = len(arithmetic)
        return Points(
            sweep=np.full(count, ""),
            scaling=np.full(count, "weak"),
            strategy=np.full(count, strategy),
            batch=np.full(count, self.axes.batch[batch]),
            arithmetic=arithmetic,
            memory_bandwidth=memory_bandwidth,
            link=np.full(count, self.axes.link[0]) if link is None else link,
            workers=np.broadcast_to(workers, count),
        )


def _distance(one: Slab, other: Slab) -> int:
    return (
        abs(one.batch - other.batch)
        + abs(one.arithmetic - other.arithmetic)
        + abs(one.memory_bandwidth - other.memory_bandwidth)
    )
