"""Times the points of a study: one capture per batch size, one recording per strategy and size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from paceline.cluster import Cluster, load_host
from paceline.collectives import Topology
from paceline.kernels.model import KernelModel
from paceline.rehearse import Conditions, Rehearsal
from paceline.rehearse.cache import known_of
from paceline.rehearse.compute import Compute, compute_cost
from paceline.rehearse.rehearsal import has_same_calls
from paceline.rehearse.rules import jitter_between
from paceline.rehearse.step_prices import device_calls_s, is_serial
from paceline.steps import Capture, Step
from paceline.steps.batches import resized
from paceline.strategies import Strategy
from paceline.studies.placement import topology_for
from paceline.studies.points import Array, Points

Resource = Literal[
    "arithmetic", "memory bandwidth", "link bandwidth", "link latency", "host", "stragglers"
]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
MORE = 1.1
"""How much more of a resource its gain is told for."""
_MOST_RECORDED = 100_000


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What points were timed to take."""

    steps_s: Array
    """Seconds per step."""
    lateness: Array
    """How late exchanges are found to be there, which helps to time points like these."""


@dataclass(kw_only=True)
class Timing:
    """What the points of one study share."""

    step: Step
    cluster: Cluster
    kernel_model: KernelModel
    jitter: float | None
    """How much workers vary; None: as the cluster says."""
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    """Strategies that were given as objects, by what the points call them."""
    _steps: dict[int, Step] = field(default_factory=dict)
    _computes: dict[int, Compute] = field(default_factory=dict)

    @property
    def workers_per_node(self) -> int:
        """Of the studied cluster."""
        return self.cluster.node_kinds[0].workers_per_node

    def step_of(self, batch: int) -> Step:
        """The step with another batch size; the same object every time, so captured once."""
        if batch not in self._steps:
            self._steps[batch] = resized(self.step, batch)
        return self._steps[batch]

    def capture_of(self, batch: int) -> Capture:
        """The step's capture with another batch size."""
        return known_of(self.step_of(batch)).capture

    def compute_of(self, batch: int) -> Compute:
        """What one worker computes per step, without any communication."""
        if batch not in self._computes:
            self._computes[batch] = compute_cost(
                self.capture_of(batch),
                self.kernel_model,
                slowdown=self._slowdown,
                host=load_host(self.cluster.node_kinds[0].host),
            )
        return self._computes[batch]

    def alone_s(self, points: Points) -> Array:
        """Seconds per step of one worker that waits for nobody."""
        return self.alone(points)[0]

    def alone(self, points: Points) -> tuple[Array, Array]:
        """Seconds per step of one worker that waits for nobody: in all, and on its device."""
        found, device_s = np.empty(len(points)), np.empty(len(points))
        for places in _together(points.batch, _is_other_device(points)):
            batch = int(points.batch[places[0]])
            own = self._conditions(points.take(places))
            found[places], device_s[places] = self._alone(own, batch)
        return found, device_s

    def steps_s(self, points: Points) -> Array:
        """Seconds per step."""
        return self.timed(points).steps_s

    def timed(
        self, points: Points, more: Resource | None = None, *, like: Timed | None = None
    ) -> Timed:
        """Time points.

        Args:
            points: What is timed.
            more: A resource of which there is a tenth more.
            like: The same points with a little more or less of something, which were timed before.
        """
        found = Timed(steps_s=np.empty(len(points)), lateness=np.zeros(len(points), dtype=int))
        recorded_for = self._recorded_for(points)
        for places in groups(points, self.workers_per_node, recorded_for):
            some = points.take(places)
            conditions = with_more(self._conditions(some), more)
            sizes = self._sizes(int(some.workers[0]), is_own=bool(recorded_for[places[0]]))
            near = None if like is None else like.lateness[places]
            own = self._group(some, conditions, sizes, near)
            found.steps_s[places], found.lateness[places] = own.steps_s, own.lateness
        return found

    def _recorded_for(self, points: Points) -> Array:
        """The number of workers where it decides what a strategy communicates, else 0."""
        several = points.workers > self.workers_per_node
        found = np.zeros(len(points), dtype=int)
        for title in np.unique(points.strategy).tolist():
            own = points.strategy == title
            inside, across = own & ~several, own & several
            if title in self.strategies:  # nobody knows what somebody's own does inside a node
                found[inside] = points.workers[inside]
            if np.any(across):
                pair = self._rehearsal(self.step, title, [self.workers_per_node] * 2)
                if not pair.is_same_on_more_nodes():
                    found[across] = points.workers[across]
        return found

    def _rehearsal(self, step: Step, title: str, sizes: Sequence[int]) -> Rehearsal:
        return Rehearsal(step, self.strategies.get(title, title), node_sizes=sizes)

    @property
    def _slowdown(self) -> float:
        return self.cluster.node_kinds[0].slowdown

    def _conditions(self, points: Points) -> Conditions:
        node = self.cluster.node_kinds[0]
        varies = jitter_between(self.jitter, None, node, on_cpu=is_serial(self.kernel_model))
        return Conditions(
            topology=topology_for(self.cluster, points.workers, points.link),
            arithmetic=_plain(points.arithmetic),
            memory=_plain(points.memory_bandwidth),
            jitter=varies.worker,
            node_jitter=varies.node,
            node=node,
        )

    def _group(
        self, points: Points, conditions: Conditions, sizes: Sequence[int], near: Array | None
    ) -> Timed:
        """Points of one strategy, one batch size and one shape of cluster."""
        batch, at_once = int(points.batch[0]), np.zeros(len(points), dtype=int)
        if sizes == [1]:
            alone_s = np.broadcast_to(self._alone(conditions, batch)[0], len(points))
            return Timed(steps_s=alone_s, lateness=at_once)
        # What a strategy does hardly ever depends on the batch size: one recording serves all.
        base, own = self.capture_of(self.step.batch), self.capture_of(batch)
        is_shared = has_same_calls(base, own)
        step = self.step if is_shared else self.step_of(batch)
        rehearsal = self._rehearsal(step, str(points.strategy[0]), sizes)
        timed = rehearsal.retime(
            conditions, self.kernel_model, capture=own if is_shared else None, near=near
        )
        return Timed(
            steps_s=np.broadcast_to(np.asarray(timed.step_s), len(points)),
            lateness=np.broadcast_to(timed.lateness, len(points)),
        )

    def _sizes(self, num_workers: int, *, is_own: bool) -> list[int]:
        """The nodes that are recorded: one, two for any number, or exactly so many."""
        per_node = self.workers_per_node
        if num_workers <= per_node:
            return [num_workers]
        num_nodes = num_workers // per_node if is_own else 2
        if num_nodes > _MOST_RECORDED:
            raise ValueError(
                "A strategy whose messages grow with the number of nodes is studied on at most "
                f"{_MOST_RECORDED:,} of them, not on {num_nodes:,}."
            )
        return [per_node] * num_nodes

    def _alone(self, conditions: Conditions, batch: int) -> tuple[Array, Array]:
        calls = self.capture_of(batch).calls
        device_s = device_calls_s(
            calls,
            self.kernel_model,
            arithmetic=conditions.arithmetic,
            memory=conditions.memory,
        ).sum(axis=-1)
        host_s = self.compute_of(batch).timeline.host_s / conditions.host
        device_s = self._slowdown * device_s
        both = host_s + device_s if is_serial(self.kernel_model) else np.maximum(host_s, device_s)
        return np.asarray(both), np.asarray(device_s)


def groups(points: Points, per_node: int, recorded_for: Array) -> Iterator[Array]:
    """Places of the points that one recording can time together.

    Args:
        points: All of them.
        per_node: Workers of a node.
        recorded_for: Of each point: the number of workers that its recording is for, 0 for any.
    """
    several = points.workers > per_node
    # Inside one node all workers do the same, in any number but one: a worker alone communicates
    # nothing.
    shape = np.where(several, 3, np.minimum(points.workers, 2))
    _, strategies = np.unique(points.strategy, return_inverse=True)
    yield from _together(strategies, points.batch, shape, _is_other_device(points), recorded_for)


def _together(*columns: Array) -> Iterator[Array]:
    """Places of the points that are the same in all columns."""
    group = np.zeros(len(columns[0]), dtype=int)
    for column in columns:  # many times as fast as to compare whole rows
        values, places = np.unique(column, return_inverse=True)
        _, group = np.unique(group * len(values) + np.ravel(places), return_inverse=True)
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def _is_other_device(points: Points) -> Array:
    """Points that need arrays of kernel times; the many others are timed much faster alone."""
    return np.asarray((points.arithmetic != 1.0) | (points.memory_bandwidth != 1.0))


def with_more(conditions: Conditions, more: Resource | None) -> Conditions:
    """The same conditions with a tenth more of a resource."""
    if more == "arithmetic":
        return replace(conditions, arithmetic=conditions.arithmetic * MORE)
    if more == "memory bandwidth":
        return replace(conditions, memory=conditions.memory * MORE)
    if more == "host":
        return replace(conditions, host=conditions.host * MORE)
    if more == "stragglers":
        jitter, node_jitter = conditions.jitter or 0.0, conditions.node_jitter or 0.0
        return replace(conditions, jitter=jitter / MORE, node_jitter=node_jitter / MORE)
    if more in ("link bandwidth", "link latency"):
        return replace(conditions, topology=_better_links(conditions.topology, more))
    return conditions


def _better_links(topology: Topology, more: Resource) -> Topology:
    """Between nodes where there are several; inside the node where there is one."""
    name = "between" if np.max(topology.num_nodes) > 1 else "inside"
    link = getattr(topology, name)
    if more == "link bandwidth":
        return (
            topology.with_faster_inside(MORE)
            if name == "inside"
            else replace(topology, between=link.times(MORE))
        )
    return replace(topology, **{name: replace(link, latency_s=link.latency_s / MORE)})


def _plain(values: Array) -> Array | float:
    """One number where all are the same, which is many times as fast to play."""
    return float(values[0]) if np.all(values == values[0]) else values
