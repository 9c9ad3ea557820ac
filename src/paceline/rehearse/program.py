"""A recording with prices put to it: what one worker does, ready to be played.

Between two moments of communication a worker only computes. Such a stretch, however many calls it
has, is three numbers (:class:`Work`), so playing a step takes a few operations for each collective
and not for each kernel. The numbers may be arrays: one program is then many, on many devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from paceline.cluster.collective import CollectiveKind
from paceline.collectives import Numbers
from paceline.kernels.timeline import Seconds
from paceline.rehearse.recording import Recording, Replay
from paceline.steps import Call
from paceline.teams.virtual import Ask, Await, Begin, Beside, Message, Pause, TeamName


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


@dataclass(frozen=True, slots=True)
class Read:
    """The host reads what the device computed, and waits for it."""


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective, and the share of the node's workers that talk to other nodes at that time."""

    ticket: int
    team: TeamName
    kind: CollectiveKind
    num_bytes: int
    talking: float


@dataclass(frozen=True, slots=True)
class Mail:
    """A message, and the share of the node's workers that talk to other nodes at that time."""

    message: Message
    talking: float

    @property
    def ticket(self) -> int:
        """What its end is awaited by."""
        return self.message.ticket


_Stretch: TypeAlias = tuple[str, tuple[Replay | Call, ...]]  # its name, and what is in it
Operation: TypeAlias = Work | Read | Meet | Mail | Await | Ask | Beside | Pause
Program: TypeAlias = tuple[tuple[Operation, ...], ...]
"""Operations, step by step; a Beside holds operations of its own."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What calls take on one kind of worker. Device times may have leading dimensions."""

    host_s: Seconds
    device_s: Seconds
    """Of every call of the captured step."""
    calls: Callable[[Sequence[Call]], tuple[Seconds, Seconds]]
    """Of calls that the strategy makes: on the host, on the device."""
    serial: bool
    """Whether the host computes what it issues, as a CPU does."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The programs of one node's workers before prices are put to them.

    Stretches that are the same, in other steps or of other workers, are one.
    """

    stretches: tuple[_Stretch, ...]
    programs: tuple[tuple[tuple[Any, ...], ...], ...]
    """By worker and step: operations, and for work the number of its stretch."""


def make_layout(recordings: Sequence[Recording], phases: Sequence[str]) -> Layout:
    """Join what is computed between two moments of communication.

    ``phases`` are those of the captured calls.
    """
    borders = [
        phases.index(phase) if phase in phases else len(phases)
        for phase in ("backward", "optimizer")
    ]
    # Links carry both ways at once: who only receives takes nothing from who sends.
    talking = [
        max(
            sum(_talks_across(recording.steps[number], is_sent=is_sent) for recording in recordings)
            for is_sent in (True, False)
        )
        / len(recordings)
        for number in range(len(recordings[0].steps))
    ]
    numbers: dict[_Stretch, int] = {}
    made: dict[int, tuple[tuple[Any, ...], ...]] = {}
    for recording in recordings:  # workers that do alike share a recording
        if id(recording) not in made:
            made[id(recording)] = tuple(
                tuple(_operations(events, borders, share, numbers))
                for events, share in zip(recording.steps, talking, strict=True)
            )
    return Layout(tuple(numbers), tuple(made[id(recording)] for recording in recordings))


def make_programs(layout: Layout, prices: Prices) -> list[Program]:
    """Put prices to a layout."""
    works = [_work(stretch, prices) for stretch in layout.stretches]

    def priced(operations: Sequence[Any]) -> tuple[Operation, ...]:
        return tuple(
            works[each]
            if isinstance(each, int)
            else Beside(each.ticket, priced(each.events))
            if isinstance(each, Beside)
            else each
            for each in operations
        )

    made: dict[int, Program] = {}
    for program in layout.programs:
        if id(program) not in made:
            made[id(program)] = tuple(priced(step) for step in program)
    return [made[id(program)] for program in layout.programs]


def _talks_across(events: Sequence[Any], *, is_sent: bool) -> bool:
    """Whether something goes to other nodes, or comes from them; collectives do both."""
    for event in events:
        if isinstance(event, Beside):
            talks = _talks_across(event.events, is_sent=is_sent)
        elif isinstance(event, Message):
            talks = event.is_outward and event.is_sent == is_sent
        else:
            talks = isinstance(event, Begin) and event.team == "across"
        if talks:
            return True
    return False


def _operations(
    events: Sequence[Any], borders: Sequence[int], talking: float, numbers: dict[_Stretch, int]
) -> Iterator[Any]:
    """Operations; work as the number of its stretch in ``numbers``, which grows."""
    last_replay = max(
        (place for place, event in enumerate(events) if isinstance(event, Replay)), default=-1
    )
    name, parts = "", list[Replay | Call]()

    def close() -> Iterator[int]:
        if parts:
            yield numbers.setdefault((name, tuple(parts)), len(numbers))
            parts.clear()

    for place, event in enumerate(events):
        if isinstance(event, Replay | Call):
            own = _name_of(event, borders, is_merge=place > last_replay)
            if own != name:
                yield from close()
                name = own
            parts.append(event)
            if isinstance(event, Call) and event.op == "_local_scalar_dense":
                yield from close()
                yield Read()
            continue
        yield from close()
        if isinstance(event, Begin):
            yield Meet(event.ticket, event.team, event.kind, event.num_bytes, talking)
        elif isinstance(event, Message):
            yield Mail(event, talking)
        elif isinstance(event, Beside):
            inner = tuple(_operations(event.events, borders, talking, numbers))
            yield Beside(event.ticket, inner)
        else:
            yield event
    yield from close()


def _name_of(event: Replay | Call, borders: Sequence[int], *, is_merge: bool) -> str:
    """What a part of a step is called in traces."""
    if isinstance(event, Call):
        # Hooks run inside the backward pass; behind the optimizer results are taken over.
        return "merge" if is_merge else "backward"
    backward, optimizer = borders
    if event.start >= optimizer:
        return "optimizer"
    return "forward" if event.stop <= backward else "backward"


def _work(stretch: _Stretch, prices: Prices) -> Work:
    """The device is through max over j of (issued_j + the work from j on) after the beginning."""
    name, parts = stretch
    calls = [part for part in parts if isinstance(part, Call)]
    own_host_s, own_device_s = prices.calls(calls) if calls else (np.zeros(0), np.zeros(0))
    hosts, devices, place = [], [], 0
    for part in parts:
        if isinstance(part, Replay):
            hosts.append(prices.host_s[part.start : part.stop])
            devices.append(prices.device_s[..., part.start : part.stop])
        else:
            hosts.append(own_host_s[place : place + 1])
            devices.append(own_device_s[..., place : place + 1])
            place += 1
    host_s, device_s = np.concatenate(hosts), np.concatenate(devices, axis=-1)
    if not len(host_s):
        return Work(name, 0.0, 0.0, 0.0)
    before = np.cumsum(device_s, axis=-1)
    total = before[..., -1].copy()
    before -= device_s
    lags = np.cumsum(host_s) - before
    return Work(name, float(host_s.sum()), total, total + lags.max(axis=-1))
