"""Recorded programs, cut into stretches of calls and moments of communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.rehearse.record_worker import Replay, WorkerRecording
from paceline.steps import Call
from paceline.teams.journal import BackgroundWork, Collective, Transfer

Stretch: TypeAlias = tuple[str, tuple[Replay | Call, ...]]
"""Its name, and what is in it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The programs of one node's workers before they are priced.

    Stretches that are the same, in other steps or of other workers, are one.
    """

    stretches: tuple[Stretch, ...]
    programs: tuple[tuple[tuple[Any, ...], ...], ...]
    """By worker and step: events, and for work the number of its stretch."""
    card_shares: tuple[float, ...]
    """By step: the share of the node's workers that communicate with other nodes."""


@dataclass(frozen=True, slots=True)
class Read:
    """The host reads what the device computed, and waits for it."""


def make_layout(recordings: Sequence[WorkerRecording], phases: Sequence[str]) -> Layout:
    """Join what is computed between two moments of communication.

    Args:
        recordings: One for each worker of a node; workers that do the same share theirs.
        phases: Those of the captured calls.

    """
    # Links carry both ways at once: who only receives takes nothing from who sends.
    card_shares = tuple(
        max(
            sum(_goes_across(recording.steps[number], is_sent=is_sent) for recording in recordings)
            for is_sent in (True, False)
        )
        / len(recordings)
        for number in range(len(recordings[0].steps))
    )
    numbers: dict[Stretch, int] = {}
    made: dict[int, tuple[tuple[Any, ...], ...]] = {}
    for recording in recordings:
        if id(recording) not in made:
            made[id(recording)] = tuple(
                tuple(_joined(events, phases, numbers)) for events in recording.steps
            )
    programs = tuple(made[id(recording)] for recording in recordings)
    return Layout(tuple(numbers), programs, card_shares)


def _goes_across(events: Sequence[Any], *, is_sent: bool) -> bool:
    """Whether something goes to other nodes, or comes from them; collectives do both."""
    for event in events:
        if isinstance(event, BackgroundWork):
            goes = _goes_across(event.events, is_sent=is_sent)
        elif isinstance(event, Transfer):
            goes = event.is_outward and event.is_sent == is_sent
        else:
            goes = isinstance(event, Collective) and event.team == "across"
        if goes:
            return True
    return False


def _joined(
    events: Sequence[Any], phases: Sequence[str], numbers: dict[Stretch, int]
) -> Iterator[Any]:
    """Events; calls as the number of their stretch in ``numbers``, which grows."""
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
            own = _name_of(event, phases, is_merge=place > last_replay)
            if own != name:
                yield from close()
                name = own
            parts.append(event)
            if isinstance(event, Call) and event.op == "_local_scalar_dense":
                yield from close()
                yield Read()
            continue
        yield from close()
        if isinstance(event, BackgroundWork):
            yield BackgroundWork(event.ticket, tuple(_joined(event.events, phases, numbers)))
        else:
            yield event
    yield from close()


def _name_of(event: Replay | Call, phases: Sequence[str], *, is_merge: bool) -> str:
    """What a part of a step is called in traces."""
    if isinstance(event, Call):
        # Hooks run inside the backward pass; behind the optimizer results are taken over.
        return "merge" if is_merge else "backward"
    return phases[event.start] if event.start < len(phases) else "optimizer"
