"""A rehearsal: one step under one strategy, recorded once and timed for any cluster of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.cluster import Cluster
from paceline.collectives import Kind, Library, Topology, collective_s
from paceline.collectives.topology import topology_of
from paceline.kernels.model import KernelModel
from paceline.rehearse.compute import Compute, compute_cost, is_serial
from paceline.rehearse.play import Costs, Played, play
from paceline.rehearse.recording import Recording, record_strategy
from paceline.steps import Call, Capture, Step, capture_step
from paceline.strategies import Strategy
from paceline.teams.virtual import Await, Begin, Beside, TeamName


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The programs of one node's workers."""

    capture: Capture
    strategy: str
    recordings: tuple[Recording, ...]
    """One for each worker of a node."""

    def time(self, cluster: Cluster, model: KernelModel) -> Timed:
        """Play the programs on a cluster."""
        compute = compute_cost(self.capture, model)
        costs = Costs(
            host_s=model.host.calls_s(self.capture),
            device_s=compute.device_calls_s,
            call=_call_cost(model),
            collective=_collective_cost(topology_of(cluster), _library(model)),
            serial=is_serial(model),
        )
        return Timed(compute=compute, played=play(self.recordings, costs), rehearsal=self)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A rehearsal's times on one cluster."""

    compute: Compute
    played: Played
    rehearsal: Rehearsal

    @property
    def steps_s(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seconds of each recorded step: from the node's last worker to its last worker."""
        ends = self.played.ends_s.max(axis=0)
        return np.diff(ends, prepend=0.0)

    def phases_s(self) -> dict[str, float]:
        """Mean seconds a step by the strategy's phase; "all" where it names none."""
        phases: dict[str, list[float]] = {}
        names = ("warm-up", "cycling", "cool-down")
        for status, seconds in zip(self.rehearsal.recordings[0].status, self.steps_s, strict=True):
            name = names[int(status["phase"])] if "phase" in status else "all"
            phases.setdefault(name, []).append(float(seconds))
        # A phase's first steps fill the pipeline; what repeats is behind them.
        return {name: float(np.mean(times[len(times) // 3 :])) for name, times in phases.items()}

    @property
    def step_s(self) -> float:
        """Seconds a step in the phase that most of a training is in."""
        phases = self.phases_s()
        return phases.get("cycling", phases.get("all", next(iter(phases.values()))))


def rehearse(
    step: Step,
    strategy: str | Strategy,
    *,
    num_nodes: int,
    workers_per_node: int,
    capture: Capture | None = None,
    **options: Any,
) -> Rehearsal:
    """Run a strategy's own code for every worker of a node, on fakes."""
    capture = capture_step(step) if capture is None else capture
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    sizes = (workers_per_node,) * num_nodes

    def record(index: int) -> Recording:
        return record_strategy(step, capture, strategy, node_sizes=sizes, index=index, **options)

    recordings = [record(index) for index in range(min(workers_per_node, 2))]
    alike = len(recordings) == 2 and _talk(recordings[0]) == _talk(recordings[1])
    for index in range(2, workers_per_node):
        recordings.append(recordings[1] if alike else record(index))
    return Rehearsal(capture=capture, strategy=name, recordings=tuple(recordings))


def _talk(recording: Recording) -> list[list[Any]]:
    """What a program communicates: programs that talk alike cost alike."""
    return [_talk_in(events) for events in recording.steps]


def _talk_in(events: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, Begin | Await):
            found.append(event)
        elif isinstance(event, Beside):
            found.append(_talk_in(event.events))
    return found


def _library(model: KernelModel) -> Library:
    return "gloo" if is_serial(model) else "nccl"


def _call_cost(model: KernelModel) -> Any:
    factor = model.host.factors.get("optimizer", 1.0)

    def cost(call: Call) -> tuple[float, float]:
        device_s = sum(estimate.seconds for estimate in model.estimate(call.kernels))
        return model.host.bare_s(call) * factor, device_s

    return cost


def _collective_cost(topology: Topology, library: Library) -> Any:
    places = {
        "world": topology,
        "node": topology.node,
        "across": replace(topology, workers_per_node=1),
    }
    known: dict[tuple[TeamName, Kind, int, int], float] = {}

    def cost(team: TeamName, kind: Kind, num_bytes: int, at_once: int) -> float:
        key = (team, kind, num_bytes, at_once)
        if key not in known:
            place = topology.across if team == "across" and at_once > 1 else places[team]
            known[key] = float(collective_s(kind, num_bytes, place, library=library))
        return known[key]

    return cost
