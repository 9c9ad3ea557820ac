"""A rehearsal: one step under one strategy, recorded once and timed for any cluster of its kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.cluster import Cluster, Node
from paceline.cluster.collective import Library
from paceline.cluster.node import TYPICAL_JITTER
from paceline.collectives import Numbers, Topology, collective_s
from paceline.collectives.topology import Route, topology_of
from paceline.kernels.model import KernelModel
from paceline.kernels.timeline import Seconds
from paceline.rehearse.compute import device_calls_s, is_serial
from paceline.rehearse.play import CollectiveCost, NodeRules, Played, Role, play
from paceline.rehearse.program import Layout, Prices, Program, make_layout, make_programs
from paceline.rehearse.recording import Recording, record_strategy
from paceline.rehearse.talk import names_places, period_of, talk_of
from paceline.steps import Call, Capture, Step, capture_step
from paceline.strategies import Strategy, make_strategy
from paceline.teams.virtual import TeamName

_MOST_LATENESS = 64
_AT_ONCE = 1024  # conditions that are timed together: their arrays fit into a core's cache


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a recorded program is timed under: numbers, or arrays of one length."""

    topology: Topology
    arithmetic: Numbers = 1.0
    """How many times as fast the device computes as the kernel model's."""
    memory: Numbers = 1.0
    """How many times as fast its memory is."""
    host: float = 1.0
    """How many times as fast its host issues."""
    jitter: float = TYPICAL_JITTER
    """How much a worker's time varies: its standard deviation over its mean."""
    node: Node | None = None
    """What else is known of the nodes: their slowdown, and what communication and computing cost
    each other."""

    def parts(self, size: int) -> Iterator[Conditions]:
        """The same conditions, so many at a time: what fits into a cache is faster."""
        count = max((len(array) for array in _arrays(self)), default=1)
        for start in range(0, count, size):
            yield _cut(self, slice(start, start + size), count)


def _arrays(value: Any) -> Iterator[Any]:
    if is_dataclass(value):
        for each in fields(value):
            yield from _arrays(getattr(value, each.name))
    elif np.ndim(value) == 1:
        yield value


def _cut(value: Any, part: slice, count: int) -> Any:
    """A part of every array in nested values; numbers stay."""
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        changed = {name: _cut(getattr(value, name), part, count) for name in names}
        return replace(value, **changed)  # type: ignore[type-var]
    return value[part] if np.ndim(value) == 1 and len(value) == count else value


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A rehearsal's times on one cluster, or under many conditions at once."""

    played: Played
    recordings: tuple[Recording, ...]
    """Of one node's workers."""
    roles: tuple[Role, ...]

    def settled_by(self, later: Timed) -> Timed:
        """The later times, where these stand on an exchange that had not arrived."""
        premature = self.played.premature
        if np.ndim(premature) == 0:
            return later
        ends_s = np.where(premature, later.played.ends_s, self.played.ends_s)
        left = premature & later.played.premature
        return replace(self, played=replace(self.played, ends_s=ends_s, premature=left))

    @property
    def steps_s(self) -> Any:
        """Seconds of each recorded step: from the last worker to the last worker."""
        ends = np.asarray(self.played.ends_s).max(axis=0)
        return np.diff(ends, axis=0, prepend=0.0)

    def phases_s(self) -> dict[str, Numbers]:
        """Mean seconds a step by the strategy's phase; "all" where it names none."""
        steps_s, names = self.steps_s, self.recordings[0].phases
        found = {}
        for name in dict.fromkeys(names):
            places = [place for place, own in enumerate(names) if own == name]
            repeating = places[-period_of(self.recordings, places) :]
            found[name] = steps_s[repeating].mean(axis=0)[()]
        return found

    @property
    def step_s(self) -> Numbers:
        """Seconds a step in the phase that most of a training is in."""
        phases = self.phases_s()
        return phases.get("cycling", next(reversed(phases.values())))


@dataclass(kw_only=True)
class Rehearsal:
    """The programs of the workers that differ, for one kind of node or several."""

    capture: Capture
    strategy: str
    node_sizes: tuple[int, ...]
    """The different numbers of workers that a node has."""
    record: Callable[..., Recording] = field(repr=False)
    """:func:`record_strategy` for a node's number of workers, the place in it and the lateness."""
    _known: dict[tuple[int, int], list[Recording]] = field(default_factory=dict, repr=False)
    _priced: dict[Any, tuple[KernelModel, Prices]] = field(default_factory=dict, repr=False)
    _layouts: dict[int, Layout] = field(default_factory=dict, repr=False)
    _made: dict[tuple[int, int], list[Program]] = field(default_factory=dict, repr=False)

    @cached_property
    def first(self) -> Recording:
        """What the first worker of the first node does, if nothing is late."""
        return self.record(self.node_sizes[0], 0, 0)

    @cached_property
    def brief(self) -> Recording:
        """The same, for one period of each phase."""
        return self.record(self.node_sizes[0], 0, 0, brief=True)

    def recordings(self, size: int, *, lateness: int = 0) -> list[Recording]:
        """One for each worker of a node of this size; workers that do alike share theirs."""
        if (size, lateness) not in self._known:
            # Workers that smaller nodes do not have are by themselves across the nodes.
            bounds = sorted({0, size, *(other for other in self.node_sizes if other < size)})
            found: list[Recording] = []
            for start, stop in pairwise(bounds):
                found += self._recorded(size, range(start, stop), lateness)
            self._known[size, lateness] = found
        return self._known[size, lateness]

    def _recorded(self, size: int, places: range, lateness: int) -> list[Recording]:
        """One for each of these places in a node; where the first two do alike, all do."""
        first, *others = places
        is_first = first == 0 and lateness == 0 and size == self.node_sizes[0]
        found = [self.first if is_first else self.record(size, first, lateness)]
        if others:
            found.append(self.record(size, others[0], lateness))
            if talk_of(found[0]) == talk_of(found[1]) and not names_places(found[0]):
                return [found[0]] * len(places)
        return [*found, *(self.record(size, place, lateness) for place in others[1:])]

    @property
    def extra_bytes(self) -> int:
        """Memory that buckets and the strategy keep beside the plain training's."""
        return self.first.extra_bytes

    def time(
        self,
        cluster: Cluster,
        model: KernelModel | Mapping[str, KernelModel],
        *,
        jitter: float | None = None,
        with_spans: bool = False,
    ) -> Timed:
        """Play the programs on a cluster; ``model`` is of all devices or by a device's name."""
        topology = topology_of(cluster)
        kinds = distinct_nodes(cluster)
        own = [model if isinstance(model, KernelModel) else model[n.device.name] for n, _ in kinds]
        prices = [
            self._prices(each, slowdown=node.slowdown)
            for each, (node, _) in zip(own, kinds, strict=True)
        ]
        rules = [
            NodeRules(
                workers=node.workers_per_node,
                nodes=count,
                serial=priced.serial,
                collective=_collective_cost(
                    replace(topology, inside=Route.of_link(node.inside)),
                    _library(priced),
                    node.workers_per_node,
                ),
                interference=_interference(node),
                busy_factor=_busy_factor(node),
                jitter=node.jitter if jitter is None else jitter,
            )
            for priced, (node, count) in zip(prices, kinds, strict=True)
        ]
        sizes = [node.workers_per_node for node, _ in kinds]
        return self._consistent(sizes, prices, rules, with_spans=with_spans)

    def retime(self, conditions: Conditions, model: KernelModel) -> Timed:
        """Play the programs under many conditions at once.

        All nodes are alike. A number of workers other than the recorded one is possible where a
        node's workers all do the same.
        """
        sizes = set(np.ravel(conditions.topology.workers_per_node).tolist())
        if sizes != {self.node_sizes[0]} and not self.is_alike:
            raise ValueError(
                f"Workers of a node do different things under {self.strategy}: rehearse it with "
                f"another number of workers; this rehearsal has {self.node_sizes[0]}."
            )
        parts = [self._retime(part, model) for part in conditions.parts(_AT_ONCE)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _retime(self, conditions: Conditions, model: KernelModel) -> Timed:
        node = conditions.node
        prices = self._prices(
            model,
            slowdown=1.0 if node is None else node.slowdown,
            arithmetic=conditions.arithmetic,
            memory=conditions.memory,
            host=conditions.host,
        )
        rules = NodeRules(
            workers=conditions.topology.workers_per_node,
            nodes=conditions.topology.num_nodes,
            serial=prices.serial,
            collective=_collective_cost(
                conditions.topology, _library(prices), conditions.topology.workers_per_node
            ),
            interference={} if node is None else _interference(node),
            busy_factor={} if node is None else _busy_factor(node),
            jitter=conditions.jitter,
        )
        return self._consistent([self.node_sizes[0]], [prices], [rules])

    def _prices(self, model: KernelModel, **changes: Numbers) -> Prices:
        """Prices by a model; kept, unless they are of many devices at once."""
        if any(np.ndim(change) for change in changes.values()):
            return _prices(self.capture, model, **changes)
        key = (id(model), *sorted(changes.items()))
        if key not in self._priced:  # with its model, whose identity must not be used again
            self._priced[key] = (model, _prices(self.capture, model, **changes))
        return self._priced[key][1]

    def _programs(self, recordings: Sequence[Recording], prices: Prices) -> list[Program]:
        """Programs of recordings, which this rehearsal keeps, so that their identity tells."""
        if id(recordings) not in self._layouts:
            phases = [call.phase for call in self.capture.calls]
            self._layouts[id(recordings)] = make_layout(recordings, phases)
        if np.ndim(prices.device_s) > 1:
            return make_programs(self._layouts[id(recordings)], prices)
        key = (id(recordings), id(prices))
        if key not in self._made:
            self._made[key] = make_programs(self._layouts[id(recordings)], prices)
        return self._made[key]

    @property
    def is_alike(self) -> bool:
        """Whether all workers of a node do the same."""
        recordings = self.recordings(self.node_sizes[0])
        return all(recording is recordings[0] for recording in recordings)

    def _consistent(
        self,
        sizes: Sequence[int],
        prices: Sequence[Prices],
        rules: Sequence[NodeRules],
        *,
        with_spans: bool = False,
    ) -> Timed:
        """Play with the least lateness for which nobody was told too early that all is there."""
        talk: Any = None
        best: Timed | None = None
        for lateness in range(_MOST_LATENESS):
            recordings = [self.recordings(size, lateness=lateness) for size in sizes]
            if best is not None:
                before, talk = talk, [talk_of(each) for own in recordings for each in own]
                if talk == before:  # who waits in the end does not ask any longer
                    break
            timed = self._play(recordings, prices, rules, with_spans=with_spans)
            best = timed if best is None else best.settled_by(timed)
            if not np.any(best.played.premature):
                break
        assert best is not None
        return best

    def _play(
        self,
        recordings: Sequence[Sequence[Recording]],
        prices: Sequence[Prices],
        rules: Sequence[NodeRules],
        *,
        with_spans: bool,
    ) -> Timed:
        roles = []
        for kind, (own, priced, rule) in enumerate(zip(recordings, prices, rules, strict=True)):
            programs = self._programs(own, priced)
            # One for all, unless workers of other kinds of node have to meet each of them.
            alike = len(recordings) == 1 and all(each is own[0] for each in own)
            for index, program in enumerate(programs[:1] if alike else programs):
                roles.append(Role(program=program, rules=rule, node_kind=kind, index=index))
        played = play(roles, with_spans=with_spans)
        return Timed(played=played, recordings=tuple(recordings[0]), roles=tuple(roles))


def _joined(parts: Sequence[Timed]) -> Timed:
    ends_s = np.concatenate([part.played.ends_s for part in parts], axis=-1)
    flags = [np.atleast_1d(part.played.premature) for part in parts]
    played = replace(parts[0].played, ends_s=ends_s, premature=np.concatenate(flags))
    return replace(parts[0], played=played)


def rehearse(
    step: Step,
    strategy: str | Strategy,
    *,
    node_sizes: Sequence[int],
    capture: Capture | None = None,
    **options: Any,
) -> Rehearsal:
    """Get ready to run a strategy's own code for every worker that differs, on fakes.

    ``node_sizes`` are the numbers of workers of each node.
    """
    capture = capture_step(step) if capture is None else capture
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    sizes = tuple(node_sizes)
    make_strategy(copy.copy(strategy), **options)  # a wrong option is told before work begins

    def record(size: int, index: int, lateness: int, *, brief: bool = False) -> Recording:
        return record_strategy(
            step,
            capture,
            strategy,
            node_sizes=sizes,
            node=sizes.index(size),
            index=index,
            lateness=lateness,
            brief=brief,
            **options,
        )

    return Rehearsal(
        capture=capture, strategy=name, node_sizes=tuple(dict.fromkeys(sizes)), record=record
    )


def distinct_nodes(cluster: Cluster) -> list[tuple[Node, int]]:
    """The kinds of node that differ, and how many nodes there are of each."""
    found: dict[Node, int] = {}
    for node in cluster.node_kinds:
        plain = node.replace(name="node", count=1, price_per_hour=None, source="")
        found[plain] = found.get(plain, 0) + node.count
    return list(found.items())


def _library(prices: Prices) -> Library:
    return "gloo" if prices.serial else "nccl"


def _interference(node: Node) -> dict[TeamName, Numbers]:
    between, inside = node.between.interference, node.inside.interference
    lone = node.between.lone_interference  # across, one of a node's workers communicates
    across = between / node.workers_per_node if lone is None else lone
    return {"world": between, "across": across, "node": inside}


def _busy_factor(node: Node) -> dict[TeamName, Numbers]:
    between = node.between
    across = between.busy_factor if between.lone_busy_factor is None else between.lone_busy_factor
    factors: dict[TeamName, Numbers] = {
        "world": between.busy_factor,
        "across": across,
        "node": node.inside.busy_factor,
    }
    return {} if all(factor == 1 for factor in factors.values()) else factors


def _prices(
    capture: Capture,
    model: KernelModel,
    *,
    slowdown: Numbers = 1.0,
    arithmetic: Numbers = 1.0,
    memory: Numbers = 1.0,
    host: float = 1.0,
) -> Prices:
    factor = model.host.factors.get("optimizer", 1.0)

    def cost(calls: Sequence[Call]) -> tuple[Seconds, Seconds]:
        host_s = factor * np.array([model.host.bare_s(call) for call in calls])
        device_s = device_calls_s(calls, model, arithmetic=arithmetic, memory=memory)
        return slowdown / host * host_s, slowdown * device_s

    return Prices(
        host_s=slowdown / host * model.host.calls_s(capture),
        device_s=slowdown
        * device_calls_s(capture.calls, model, arithmetic=arithmetic, memory=memory),
        calls=cost,
        serial=is_serial(model),
    )


def _collective_cost(topology: Topology, library: Library, workers: Numbers) -> CollectiveCost:
    """What a node with so many workers pays for the collectives that it takes part in."""
    places = {"world": topology, "node": topology.node}
    known: dict[tuple[Any, ...], Numbers] = {}

    def cost(team: TeamName, kind: Any, num_bytes: int, talking: float) -> Numbers:
        key = (team, kind, num_bytes, talking)
        if key not in known:
            num_talking = np.maximum(1, talking * workers)
            place = topology.across_beside(num_talking) if team == "across" else places[team]
            known[key] = collective_s(kind, num_bytes, place, library=library)
        return known[key]

    return cost
