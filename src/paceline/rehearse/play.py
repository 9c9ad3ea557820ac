"""Play recorded programs together: a discrete-event simulation of one node's workers.

Every worker has a host that issues, a device that follows, and a background beside them. A
collective begins when its last member arrives and its team has ended the one before; waiting holds
up the device (a GPU's stream) or the host (a CPU's thread). Nodes are alike, so one node's workers
stand for all: their peers on other nodes arrive when they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from paceline.collectives import Kind
from paceline.kernels.timeline import Seconds
from paceline.rehearse.recording import Recording, Replay
from paceline.steps.capture import Call
from paceline.teams.virtual import Await, Begin, Beside, Pause, TeamName

CollectiveCost: TypeAlias = Callable[[TeamName, Kind, int, int], float]
"""Seconds of a collective: team, kind, bytes, how many of the node's workers do one at once."""
CallCost: TypeAlias = Callable[[Call], tuple[float, float]]
"""Seconds of a call that the strategy or the optimizer makes: on the host, on the device."""
_Process: TypeAlias = Generator["_Key", None, None]
_Key: TypeAlias = tuple[int, int]  # worker, ticket


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things take."""

    host_s: Seconds
    device_s: Seconds
    """Of every call of the captured step."""
    call: CallCost
    collective: CollectiveCost
    serial: bool
    """Whether the host computes what it issues, as a CPU does."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something on a track, from when to when: what a trace shows."""

    worker: int
    track: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Played:
    """When each worker ended each step, and what happened meanwhile."""

    ends_s: Seconds
    """(workers, steps)."""
    spans: tuple[Span, ...]


@dataclass
class _Clock:
    """One worker's timelines: what the next event may not be earlier than."""

    host_s: float = 0.0
    device_s: float = 0.0

    def run(self, host_s: float, device_s: float, *, serial: bool) -> None:
        """One call: the host issues it, the device runs it."""
        if serial:
            self.host_s += host_s + device_s
            self.device_s = self.host_s
            return
        self.host_s += host_s
        if device_s:
            self.device_s = max(self.device_s, self.host_s) + device_s

    @property
    def ready_s(self) -> float:
        """When everything issued so far is done."""
        return max(self.host_s, self.device_s)

    def hold(self, until_s: float, *, serial: bool) -> None:
        """Do nothing before a moment."""
        self.device_s = max(self.device_s, until_s)
        if serial:
            self.host_s = max(self.host_s, until_s)


@dataclass
class _Meeting:
    """A collective of one team: who has come, and when."""

    arrivals: list[tuple[_Key, float]] = field(default_factory=list)


def play(recordings: Sequence[Recording], costs: Costs) -> Played:
    """Play the programs of one node's workers, one recording for each of them."""
    return _Player(recordings, costs).play()


class _Player:
    def __init__(self, recordings: Sequence[Recording], costs: Costs) -> None:
        self._recordings = recordings
        self._costs = costs
        self._resolved: dict[_Key, float] = {}
        self._meetings: dict[tuple[bool, str, int], _Meeting] = defaultdict(_Meeting)
        self._ordinals: dict[tuple[int, bool, str], int] = defaultdict(int)
        self._free_s: dict[tuple[bool, str], float] = defaultdict(float)
        self._background_s = [0.0] * len(recordings)
        self._waiting_work: list[list[tuple[Beside, float]]] = [[] for _ in recordings]
        self._spans: list[Span] = []
        self._ends = np.zeros((len(recordings), len(recordings[0].steps)))
        # How many of a node's workers talk across at once: all of them, or one in turn.
        self._num_across = {
            background: max(1, sum(_talks_across(each, background) for each in recordings))
            for background in (False, True)
        }

    def play(self) -> Played:
        processes: list[tuple[_Process, _Key | None]] = []
        for worker in range(len(self._recordings)):
            processes.append((self._main(worker), None))
        while processes:
            progressed = False
            remaining: list[tuple[_Process, _Key | None]] = []
            for process, key in processes:
                if key is not None and key not in self._resolved:
                    remaining.append((process, key))
                    continue
                progressed = True
                blocked = next(process, None)
                if blocked is not None:
                    remaining.append((process, blocked))
            for worker, work in enumerate(self._waiting_work):
                for item in work:
                    remaining.append((self._beside(worker, *item), self._last_beside(worker)))
                    self._note_beside(worker, item[0])
                work.clear()
            processes = remaining
            assert progressed or not processes, "workers wait for each other for ever"
        return Played(ends_s=self._ends, spans=tuple(self._spans))

    def _last_beside(self, worker: int) -> _Key | None:
        last = self._ordinals[worker, True, "ticket"]
        return (worker, last) if last else None

    def _note_beside(self, worker: int, beside: Beside) -> None:
        self._ordinals[worker, True, "ticket"] = beside.ticket

    def _main(self, worker: int) -> _Process:
        clock = _Clock()
        for number, events in enumerate(self._recordings[worker].steps):
            yield from self._run(worker, events, clock, background=False)
            self._ends[worker, number] = clock.ready_s

    def _beside(self, worker: int, beside: Beside, asked_s: float) -> _Process:
        start_s = max(asked_s, self._background_s[worker])
        clock = _Clock(host_s=start_s, device_s=start_s)
        yield from self._run(worker, beside.events, clock, background=True)
        self._background_s[worker] = clock.ready_s
        self._resolved[worker, beside.ticket] = clock.ready_s

    def _run(
        self, worker: int, events: Sequence[Any], clock: _Clock, *, background: bool
    ) -> _Process:
        serial = self._costs.serial
        for event in events:
            if isinstance(event, Replay):
                self._replay(worker, event, clock)
            elif isinstance(event, Call):
                clock.run(*self._costs.call(event), serial=serial)
                if event.op == "_local_scalar_dense" and not serial:
                    clock.host_s = clock.ready_s  # the host reads what the device computed
            elif isinstance(event, Begin):
                self._arrive(worker, event, clock, background=background)
            elif isinstance(event, Await):
                key = (worker, event.ticket)
                if key not in self._resolved:
                    yield key
                # Background work is a thread that waits; the main program's device does.
                clock.hold(self._resolved[key], serial=serial or background)
            elif isinstance(event, Beside):
                self._waiting_work[worker].append((event, clock.ready_s))
            elif isinstance(event, Pause):
                clock.hold(clock.ready_s + event.seconds, serial=True)

    def _replay(self, worker: int, replay: Replay, clock: _Clock) -> None:
        """Many calls at once: the device ends at max over j of (issued_j + the work from j on)."""
        host_s = self._costs.host_s[replay.start : replay.stop]
        device_s = self._costs.device_s[replay.start : replay.stop]
        begun_s = clock.ready_s if self._costs.serial else clock.device_s
        if not len(host_s):
            return
        if self._costs.serial:
            clock.run(float(host_s.sum()), float(device_s.sum()), serial=True)
        else:
            issued = clock.host_s + np.cumsum(host_s)
            work = np.cumsum(device_s)
            lag = np.maximum.accumulate(issued - (work - device_s))
            clock.device_s = float(work[-1] + max(lag[-1], clock.device_s))
            clock.host_s = float(issued[-1])
        self._spans.append(Span(worker, "device", "compute", begun_s, clock.ready_s))

    def _arrive(self, worker: int, begin: Begin, clock: _Clock, *, background: bool) -> None:
        ordinal = self._ordinals[worker, background, begin.team]
        self._ordinals[worker, background, begin.team] += 1
        key = (worker, begin.ticket)
        # Peers on other nodes are this worker's likes; they are here when it is.
        alone = begin.team == "across"
        members = 1 if alone else len(self._recordings)
        name = f"{begin.team}{worker}" if alone else begin.team
        meeting = self._meetings[background, name, ordinal]
        meeting.arrivals.append((key, clock.ready_s))
        if len(meeting.arrivals) < members:
            return
        last_s = max(arrived_s for _, arrived_s in meeting.arrivals)
        start_s = max(last_s, self._free_s[background, name])
        took_s = self._costs.collective(
            begin.team, begin.kind, begin.num_bytes, self._num_across[background]
        )
        self._free_s[background, name] = start_s + took_s
        for member, _ in meeting.arrivals:
            self._resolved[member] = start_s + took_s
            track = "background" if background else "communication"
            self._spans.append(
                Span(member[0], track, f"{begin.kind} {begin.team}", start_s, start_s + took_s)
            )


def _talks_across(recording: Recording, background: bool) -> bool:
    """Whether a worker's program talks to its peers in its first step that communicates at all."""
    for events in recording.steps:
        chosen = (
            [each for e in events if isinstance(e, Beside) for each in e.events]
            if background
            else events
        )
        begun = [event for event in chosen if isinstance(event, Begin)]
        if begun:
            return any(event.team == "across" for event in begun)
    return False
