"""Measures the links of the job it runs in: times collectives, and fits what explains them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
import torch

from paceline.cluster import Cluster, Link
from paceline.cluster.collective import CollectiveKind
from paceline.collectives import Numbers, Route, Topology, collective_s
from paceline.measure.contention import Contention
from paceline.measure.link_fit import fit_route, mean_error
from paceline.measure.workers import MeasuredWorkers
from paceline.teams.backend import device_in_use, library_in_use
from paceline.teams.team import Team
from paceline.teams.workers import Workers

# Two for the latency, and 64 KiB to 32 MiB.
SIZES_BYTES = (2**12, 2**14, *(2**power for power in range(16, 26)))
SECONDS_PER_SIZE = 0.7
_MOST_REPEATS = 15
# Small messages come several in a row: a link that has rested lets the first bytes pass for
# nothing (a token bucket's burst, a card's queue), and in training links do not rest.
_BYTES_IN_A_ROW = 1 << 20
_MOST_IN_A_ROW = 16
# All workers of a node at once, against one alone: a shared card takes twice as long for two.
_SHARED_FROM = 1.5
# A fit that wants no latency ends somewhere below what a message can take.
_LEAST_LATENCY_S = 1e-8

Place = Literal["inside", "between"]
_TeamName = Literal["node", "across", "world"]
_Times = dict[tuple[_TeamName, CollectiveKind, int], float]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """How long one collective took: the median over repeats of the slowest worker's time."""

    team: _TeamName
    kind: CollectiveKind
    num_bytes: int
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """A link as it was measured, and how well it explains the times."""

    place: Place
    link: Link
    samples: tuple[Sample, ...]

    def mean_error_of(self, kind: CollectiveKind) -> float:
        """The mean of |predicted / measured − 1| over one kind of collective."""
        samples = [sample for sample in self.samples if sample.kind == kind]
        return mean_error(
            np.array([sample.predicted_s for sample in samples]),
            np.array([sample.measured_s for sample in samples]),
        )


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """How long collectives took, the same on all workers: what links are fitted to."""

    node_sizes: tuple[int, ...]
    inside: _Times
    """Empty where no node has two workers."""
    between: _Times
    """Empty where there is one node."""
    shared: bool
    """Whether a node's workers slow each other down when all of them use the network."""


def measure_links(
    workers: Workers,
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    seconds_per_size: float = SECONDS_PER_SIZE,
) -> list[MeasuredLink]:
    """Measure the links of this job: inside the nodes, between them, or both.

    All workers call it, and all get the same answer.

    Args:
        workers: The teams of this job, as :func:`paceline.find_workers` returns them.
        sizes_bytes: The sizes of the messages to time; at least three.
        seconds_per_size: How long to repeat each of them.

    Returns:
        One link for each place that has at least two workers to connect.
    """
    times = time_links(workers, sizes_bytes=sizes_bytes, seconds_per_size=seconds_per_size)
    return fit_links(times)


def time_links(
    workers: Workers, *, sizes_bytes: Sequence[int], seconds_per_size: float = SECONDS_PER_SIZE
) -> LinkTimes:
    """Time the collectives of this job. All workers call it, and all get the same times.

    Args:
        workers: The teams of this job.
        sizes_bytes: The sizes of the messages to time; at least three.
        seconds_per_size: How long each size is repeated, if it is not longer by itself.
    """
    inside: _Times = {}
    between: _Times = {}
    size, shared = max(workers.node_sizes), True
    if size > 1:
        inside = _times_s("node", workers, sizes_bytes, seconds_per_size)
    if workers.num_nodes > 1:
        between = _times_s("across", workers, sizes_bytes, seconds_per_size)
        if size > 1:
            shared = _is_shared(workers, max(sizes_bytes), seconds_per_size)
            # A ring through all workers is slower than one through one worker of each node, where
            # they share cores or cards, and it is what synchronous training does.
            between |= _times_s("world", workers, sizes_bytes, seconds_per_size)
    return LinkTimes(node_sizes=workers.node_sizes, inside=inside, between=between, shared=shared)


def fit_links(times: LinkTimes) -> list[MeasuredLink]:
    """The links that explain the times best, one for each place that has any.

    Args:
        times: What :func:`time_links` returned.
    """
    measured = []
    if times.inside:
        measured.append(_fit("inside", times.inside, (max(times.node_sizes),), shared=False))
    if times.between:
        inside = Route.of_link(measured[0].link) if measured else None
        between = _fit(
            "between", times.between, times.node_sizes, shared=times.shared, inside=inside
        )
        measured.append(between)
    return measured


def measured_cluster(
    base: Cluster,
    node_sizes: Sequence[int],
    measured: Sequence[MeasuredLink],
    *,
    workers: MeasuredWorkers | None = None,
    name: str = "measured",
) -> Cluster:
    """The cluster of a job: its nodes and measured links, and everything else from ``base``.

    Args:
        base: The cluster whose device, prices and unmeasured links are taken over.
        node_sizes: Workers per node, node by node.
        measured: What :func:`measure_links` returned.
        workers: What :func:`~paceline.measure.workers.measure_workers` returned, if it was called.
        name: The name of the new cluster.
    """
    links = {one.place: one.link for one in measured}
    own = f"measured by 'paceline measure links'; whatever was not is from {base.name}"
    kind = base.node_kinds[0].replace(source=own, **links)
    if workers is not None:
        kind = kind.replace(
            slowdown=workers.slowdown,
            jitter=workers.jitter,
            inside=_with_contention(kind.inside, workers.inside),
            between=_with_contention(kind.between, workers.between, workers.lone),
        )
    groups = [(workers, len(list(same))) for workers, same in groupby(node_sizes)]
    names = [kind.name] if len(groups) == 1 else [f"{kind.name}-{i}" for i in range(len(groups))]
    nodes = [
        kind.replace(name=node_name, count=count, workers_per_node=workers)
        for node_name, (workers, count) in zip(names, groups, strict=True)
    ]
    description = f"{sum(node_sizes)} workers on {len(node_sizes)} nodes, {own}"
    return base.replace(name=name, node_kinds=tuple(nodes), description=description)


def _with_contention(
    link: Link, contention: Contention | None, lone: Contention | None = None
) -> Link:
    """The link with what its transfers and computing cost each other."""
    if contention is None:
        return link
    return link.replace(
        interference=contention.interference,
        busy_factor=contention.busy_factor,
        lone_interference=lone.interference if lone else None,
        lone_busy_factor=lone.busy_factor if lone else None,
    )


def time_collective_s(
    team: Team,
    kind: CollectiveKind,
    num_bytes: int,
    *,
    seconds_per_size: float = SECONDS_PER_SIZE,
) -> float:
    """The median over repeats of the slowest worker's time. All members of the team call it.

    Args:
        team: Who communicates.
        kind: ``"all_reduce"`` or ``"broadcast"``.
        num_bytes: The size of the tensor.
        seconds_per_size: How long to repeat it, if it is not longer by itself.
    """
    tensor = torch.zeros(num_bytes // 4, device=device_in_use())
    in_a_row = max(1, min(_MOST_IN_A_ROW, _BYTES_IN_A_ROW // num_bytes))
    # The first call opens connections; the second tells how often there is time to repeat. What
    # takes a second varies little; small messages vary more, and can be repeated often.
    row_s(team, kind, tensor, 1)
    first_s = row_s(team, kind, tensor, in_a_row)
    repeats = min(_MOST_REPEATS, round(seconds_per_size / first_s))
    others_s = [row_s(team, kind, tensor, in_a_row) for _ in range(repeats - 1)]
    return statistics.median([first_s, *others_s]) / in_a_row


def _times_s(
    name: _TeamName, workers: Workers, sizes_bytes: Sequence[int], seconds_per_size: float
) -> _Times:
    """Seconds by kind and size in the slowest of the teams of a name; all workers get them."""
    team = getattr(workers, name)
    # One worker of each node communicates; the others are only told how long it took.
    is_member = name != "across" or workers.node.rank == 0
    kinds: tuple[CollectiveKind, ...] = (
        ("all_reduce",) if name == "world" else ("all_reduce", "broadcast")
    )

    def time_s(kind: CollectiveKind, num_bytes: int) -> float:
        return time_collective_s(team, kind, num_bytes, seconds_per_size=seconds_per_size)

    return {
        (name, kind, num_bytes): workers.world.agree(
            time_s(kind, num_bytes) if is_member else 0.0, "max"
        )
        for kind in kinds
        for num_bytes in sizes_bytes
    }


def row_s(team: Team, kind: CollectiveKind, tensor: torch.Tensor, count: int) -> float:
    """From the moment when all are there to the moment when all are done, with so many of them.

    Args:
        team: Who communicates; all members call it, and get the slowest one's time.
        kind: ``"all_reduce"`` or ``"broadcast"``.
        tensor: What is sent.
        count: How many of them, one after another.
    """
    team.agree(0.0, "max")
    start = time.perf_counter()
    for _ in range(count):
        is_sum = kind == "all_reduce"
        (team.all_reduce(tensor) if is_sum else team.broadcast(tensor, source=0)).wait()
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return team.agree(time.perf_counter() - start, "max")


def _is_shared(workers: Workers, num_bytes: int, seconds_per_size: float) -> bool:
    """Whether a node's workers slow each other down when all of them use the network.

    Several messages one after another, since those who share get their turns unevenly: some
    messages of theirs take as long as alone.
    """
    is_first = workers.node.rank == 0
    first_s = 0.0
    if is_first:
        first_s = time_collective_s(
            workers.across, "all_reduce", num_bytes, seconds_per_size=seconds_per_size
        )
    count = max(2, min(8, round(seconds_per_size / workers.world.agree(first_s, "max"))))
    tensor = torch.zeros(num_bytes // 4, device=device_in_use())

    def several_s(*, all_communicate: bool) -> float:
        workers.world.agree(0.0)
        start = time.perf_counter()
        for _ in range(count if all_communicate or is_first else 0):
            row_s(workers.across, "all_reduce", tensor, 1)
        return workers.world.agree(time.perf_counter() - start, "max")

    alone_s = several_s(all_communicate=False)
    return several_s(all_communicate=True) > _SHARED_FROM * alone_s


def _fit(
    place: Place,
    times_s: _Times,
    node_sizes: Sequence[int],
    *,
    shared: bool,
    inside: Route | None = None,
) -> MeasuredLink:
    library = library_in_use()

    def predict(route: Route) -> list[float]:
        whole = Topology(
            num_nodes=len(node_sizes),
            workers_per_node=max(node_sizes),
            inside=route if inside is None else inside,
            between=route,
            shared=shared,
            # What topology_of makes of links that were measured: they reach what they have.
            copy_bandwidth_bytes_per_s=(inside or route).bandwidth_bytes_per_s,
        )
        teams = {"node": whole, "world": whole, "across": replace(whole, workers_per_node=1)}
        return [
            float(collective_s(kind, num_bytes, teams[team], library=library))
            for team, kind, num_bytes in times_s
        ]

    # All-reduces are what training does; broadcasts, which add nothing up, only check the result.
    is_fitted = [kind == "all_reduce" for _, kind, _ in times_s]
    measured_s = np.array(list(times_s.values()))
    route = fit_route(
        lambda route: np.array(predict(route))[is_fitted],
        list(measured_s[is_fitted]),
        # Training sends megabytes, so they weigh more than a message of a few KiB, whose time
        # depends on when a process is woken up.
        weights=[math.sqrt(size) for _, kind, size in times_s if kind == "all_reduce"],
    )
    link = Link(
        latency_s=_rounded(route.latency_s) if route.latency_s > _LEAST_LATENCY_S else 0.0,
        bandwidth_bytes_per_s=_rounded(route.bandwidth_bytes_per_s),
        half_bytes=round(_rounded(route.half_bytes)),
        shared=shared,
        efficiency=1.0 if library == "nccl" else None,
        source=f"measured: {library}, {sum(node_sizes)} workers, by 'paceline measure links'",
    )
    samples = [
        Sample(
            team=team,
            kind=kind,
            num_bytes=num_bytes,
            measured_s=times_s[team, kind, num_bytes],
            predicted_s=predicted_s,
        )
        for (team, kind, num_bytes), predicted_s in zip(
            times_s, predict(Route.of_link(link)), strict=True
        )
    ]
    return MeasuredLink(place=place, link=link, samples=tuple(samples))


def _rounded(value: Numbers) -> float:
    """To the four digits that a measurement can vouch for at best."""
    return float(f"{float(value):.4g}")
