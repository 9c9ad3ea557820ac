"""Stage 1, record: run the strategy's own code for every worker that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from paceline.cluster import Cluster
from paceline.rehearse.choice import Choice
from paceline.rehearse.communication import communication_of, forgotten_in, names_places, period_of
from paceline.rehearse.layout import Layout, make_layout
from paceline.rehearse.record_worker import WorkerRecording, record_worker
from paceline.steps import Capture, Step, capture_step
from paceline.strategies import Schedule, Strategy


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What programs are told about time while they are recorded, before anybody knows it."""

    lateness: int = 0
    """How often a program that asks whether something is over is told that it is not."""
    readings: Mapping[tuple[int, int], tuple[float, ...]] | None = None
    """By a node's size and a worker's place in it: what it reads of the clock and hears from teams
    that agree. None: it is not known yet whether that matters."""


@dataclass(frozen=True, kw_only=True)
class PhaseSteps:
    """Where a phase lies in a recording."""

    places: tuple[int, ...]
    """Of its recorded steps."""
    period: int
    """After how many steps its end repeats itself."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What the workers of a cluster do in some steps of every phase, without any prices."""

    capture: Capture
    strategy: str
    schedule: Schedule
    node_sizes: tuple[int, ...]
    """The different numbers of workers that a node has."""
    workers: Mapping[int, tuple[WorkerRecording, ...]] = field(repr=False)
    """By a node's size: its workers. Workers that do the same share a recording."""
    layouts: Mapping[int, Layout] = field(repr=False)
    """By a node's size: the same, cut into stretches."""
    phases: Mapping[str, PhaseSteps]
    assumed: Assumptions = Assumptions()

    @property
    def is_time_used(self) -> bool:
        """Whether what a worker does depends on the time, which was not known."""
        return any(each.is_time_used for own in self.workers.values() for each in own)

    @cached_property
    def forgotten(self) -> tuple[str, ...]:
        """What workers begin and never wait for."""
        found = (forgotten_in(each) for own in self.workers.values() for each in own)
        return tuple(dict.fromkeys(what for what in found if what is not None))

    @property
    def is_uniform(self) -> bool:
        """Whether all workers of the first kind of node do the same."""
        own = self.workers[self.node_sizes[0]]
        return all(each is own[0] for each in own)

    @property
    def extra_bytes(self) -> int:
        """Memory that buckets and the strategy keep beside the plain training's."""
        return self.workers[self.node_sizes[0]][0].extra_bytes

    @cached_property
    def communication(self) -> list[Any]:
        """What all workers communicate."""
        return [communication_of(each) for own in self.workers.values() for each in own]


class RecordWorker(Protocol):
    """How one worker is recorded: by :func:`record_worker`, or from what is known already."""

    def __call__(
        self, *, node: int, index: int, lateness: int, readings: Sequence[float] | None
    ) -> WorkerRecording:
        """Record the worker with this place in this node."""


def record(
    step: Step,
    strategy: str | Strategy,
    cluster: Cluster | Sequence[int],
    *,
    capture: Capture | None = None,
    assumed: Assumptions = Assumptions(),  # noqa: B008
    num_steps: int | None = None,
    record_one: RecordWorker | None = None,
    **options: Any,
) -> Recording:
    """Run a strategy around a step on tensors without values and on virtual teams.

    Args:
        step: What is trained.
        strategy: A strategy's name, or a strategy, which stays as it is.
        cluster: A cluster, or the number of workers of each node.
        capture: The step's capture, if there is one already.
        assumed: What the strategy is told about time.
        num_steps: The run's length, for a strategy that wants to know it.
        record_one: Records one worker, in place of :func:`record_worker`.
        **options: The strategy's options.

    """
    own = capture_step(step) if capture is None else capture
    choice = Choice(strategy=strategy, options=options, num_steps=num_steps)
    chosen = choice.make()
    sizes = tuple(cluster.workers_per_node if isinstance(cluster, Cluster) else cluster)

    def plain(
        *, node: int, index: int, lateness: int, readings: Sequence[float] | None
    ) -> WorkerRecording:
        return record_worker(
            step,
            own,
            chosen,
            node_sizes=sizes,
            node=node,
            index=index,
            lateness=lateness,
            readings=readings,
        )

    different = tuple(dict.fromkeys(sizes))
    recorded = {
        size: tuple(_record_node(record_one or plain, size, sizes, assumed)) for size in different
    }
    calls = [call.phase for call in own.calls]
    return Recording(
        capture=own,
        strategy=choice.title,
        schedule=chosen.schedule(),
        node_sizes=different,
        workers=recorded,
        layouts={size: make_layout(workers, calls) for size, workers in recorded.items()},
        phases=_phases_of(recorded[different[0]]),
        assumed=assumed,
    )


def _record_node(
    record_one: RecordWorker, size: int, sizes: Sequence[int], assumed: Assumptions
) -> list[WorkerRecording]:
    """One for each worker of a node of this size."""

    def recorded(place: int) -> WorkerRecording:
        readings = None if assumed.readings is None else assumed.readings.get((size, place), ())
        return record_one(
            node=sizes.index(size), index=place, lateness=assumed.lateness, readings=readings
        )

    # Workers that smaller nodes do not have are by themselves across the nodes.
    bounds = sorted({0, size, *(other for other in sizes if other < size)})
    found: list[WorkerRecording] = []
    for start, stop in pairwise(bounds):
        own = [recorded(place) for place in range(start, min(start + 2, stop))]
        # Where the first two do the same, all do.
        if (
            len(own) > 1
            and communication_of(own[0]) == communication_of(own[1])
            and not names_places(own[0])
        ):
            found += [own[0]] * (stop - start)
        else:
            found += _shared([*own, *(recorded(place) for place in range(start + 2, stop))])
    return found


def _shared(workers: Sequence[WorkerRecording]) -> list[WorkerRecording]:
    """The same workers; those that do the same have the first one's recording."""
    different: list[tuple[list[Any], WorkerRecording]] = []
    found = []
    for own in workers:
        communication = communication_of(own)
        same = (each for known, each in different if known == communication)
        first = None if names_places(own) else next(same, None)
        if first is None:
            different.append((communication, own))
        found.append(first or own)
    return found


def _phases_of(workers: Sequence[WorkerRecording]) -> dict[str, PhaseSteps]:
    names = workers[0].phases
    found = {}
    for name in dict.fromkeys(names):
        places = tuple(place for place, own in enumerate(names) if own == name)
        found[name] = PhaseSteps(places=places, period=period_of(workers, places))
    return found
