"""A recording with prices put to it: what one worker does, ready to be played.

Between two moments of communication a worker only computes. Such a stretch, however many calls it
has, is three numbers (:class:`Work`), so playing a step takes a few operations for each collective
and not for each kernel. The numbers may be arrays: one program is then many, on many devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from paceline.collectives import Kind, Numbers
from paceline.kernels.timeline import Seconds
from paceline.rehearse.recording import Recording, Replay
from paceline.steps import Call
from paceline.teams.virtual import Ask, Await, Begin, Beside, Pause, TeamName


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of calls.

    The host issues it in ``host_s``; the device works for ``device_s``; if the device was idle when
    the host began, it is through ``lag_s`` after that.
    """

    name: str
    host_s: Numbers
    device_s: Numbers
    lag_s: Numbers

    def then(self, other: Work) -> Work:
        """This stretch and another behind it, as one."""
        return Work(
            self.name,
            self.host_s + other.host_s,
            self.device_s + other.device_s,
            np.maximum(self.lag_s + other.device_s, self.host_s + other.lag_s),
        )


@dataclass(frozen=True, slots=True)
class Read:
    """The host reads what the device computed, and waits for it."""


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective, and how many of the node's workers talk to other nodes at that time."""

    ticket: int
    team: TeamName
    kind: Kind
    num_bytes: int
    at_once: int


_READS = "_local_scalar_dense"
_Run: TypeAlias = tuple[str, tuple[Call, ...]]  # calls of the strategy, and what they belong to
Operation: TypeAlias = Work | Read | Meet | Await | Ask | Beside | Pause
Program: TypeAlias = tuple[tuple[Operation, ...], ...]
"""Operations, step by step; a Beside holds operations of its own."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What calls take on one kind of worker. Device times may have leading dimensions."""

    host_s: Seconds
    device_s: Seconds
    """Of every call of the captured step."""
    num_forward: int
    """How many of these calls are the forward pass."""
    num_before_optimizer: int
    """How many come before the optimizer's."""
    calls: Callable[[Sequence[Call]], tuple[Seconds, Seconds]]
    """Of calls that the strategy makes: on the host, on the device."""
    serial: bool
    """Whether the host computes what it issues, as a CPU does."""
    works: dict[Replay | _Run, Work] = field(default_factory=dict, repr=False)
    programs: dict[Hashable, list[Program]] = field(default_factory=dict, repr=False)
    """What was worked out with these prices before."""


def make_programs(recordings: Sequence[Recording], prices: Prices) -> list[Program]:
    """The programs of one node's workers."""
    talkers = [
        sum(_talks_across(recording.steps[number]) for recording in recordings)
        for number in range(len(recordings[0].steps))
    ]
    made: dict[int, Program] = {}
    for recording in recordings:  # workers that do alike share a recording
        if id(recording) not in made:
            made[id(recording)] = tuple(
                tuple(_merged(_operations(events, prices, max(1, at_once))))
                for events, at_once in zip(recording.steps, talkers, strict=True)
            )
    return [made[id(recording)] for recording in recordings]


def _talks_across(events: Sequence[Any]) -> bool:
    return any(
        _talks_across(event.events)
        if isinstance(event, Beside)
        else isinstance(event, Begin) and event.team == "across"
        for event in events
    )


def _joined(events: Sequence[Any], borders: tuple[int, ...]) -> list[Any]:
    """The events, with replays that follow each other as one, and so with calls."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Call):
            if isinstance(last, list) and last[-1].op != _READS:
                last.append(event)
            else:
                found.append([event])
        elif (
            isinstance(event, Replay)
            and isinstance(last, Replay)
            and last.stop == event.start
            and event.start not in borders
        ):
            found[-1] = Replay(last.start, event.stop)
        else:
            found.append(event)
    return [tuple(each) if isinstance(each, list) else each for each in found]


def _operations(events: Sequence[Any], prices: Prices, at_once: int) -> Iterator[Operation]:
    events = _joined(events, (prices.num_forward, prices.num_before_optimizer))
    last_replay = max(
        (place for place, event in enumerate(events) if isinstance(event, Replay)), default=-1
    )
    for place, event in enumerate(events):
        if isinstance(event, Replay):
            if event not in prices.works:
                prices.works[event] = _replayed(event, prices)
            yield prices.works[event]
        elif isinstance(event, tuple):
            # Hooks run inside the backward pass; behind the optimizer results are taken over.
            run = ("backward" if place < last_replay else "merge", event)
            if run not in prices.works:
                prices.works[run] = _stretch(run[0], *prices.calls(event))
            yield prices.works[run]
            if event[-1].op == _READS:
                yield Read()
        elif isinstance(event, Begin):
            yield Meet(event.ticket, event.team, event.kind, event.num_bytes, at_once)
        elif isinstance(event, Beside):
            yield Beside(event.ticket, tuple(_merged(_operations(event.events, prices, at_once))))
        else:
            yield event


def _replayed(replay: Replay, prices: Prices) -> Work:
    name = "forward" if replay.stop <= prices.num_forward else "backward"
    if replay.start >= prices.num_before_optimizer:
        name = "optimizer"
    part = slice(replay.start, replay.stop)
    return _stretch(name, prices.host_s[part], prices.device_s[..., part])


def _stretch(name: str, host_s: Seconds, device_s: Seconds) -> Work:
    """The device is through max over j of (issued_j + the work from j on) after the beginning."""
    if not len(host_s):
        return Work(name, 0.0, 0.0, 0.0)
    before = np.cumsum(device_s, axis=-1)
    total = before[..., -1].copy()
    before -= device_s
    lags = np.cumsum(host_s) - before
    return Work(name, float(host_s.sum()), total, total + lags.max(axis=-1))


def _merged(operations: Iterator[Operation]) -> Iterator[Operation]:
    open_work: Work | None = None
    for operation in operations:
        if isinstance(operation, Work):
            if open_work is not None and open_work.name == operation.name:
                open_work = open_work.then(operation)
                continue
            if open_work is not None:
                yield open_work
            open_work = operation
            continue
        if open_work is not None:
            yield open_work
            open_work = None
        yield operation
    if open_work is not None:
        yield open_work
