"""What recorded programs communicate: whether two do the same, and when one repeats itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.rehearse.record_worker import WorkerRecording
from paceline.teams.journal import BackgroundWork, Collective, Pause, Poll, Transfer, Wait

SMALL_BYTES = 4096
"""A message whose size does not matter: its latency is its cost."""


def communication_of(recording: WorkerRecording) -> list[list[Any]]:
    """What a program communicates: programs that do the same here cost the same."""
    return [_communication_in(events) for events in recording.steps]


def names_places(recording: WorkerRecording) -> bool:
    """Whether a program sends to other places than its own: then no other worker does the same."""
    return any(
        isinstance(event, Transfer) and event.offset != 0
        for events in recording.steps
        for event in _flat(events)
    )


def forgotten_in(recording: WorkerRecording) -> str | None:
    """What a program begins in the first half of its steps and never waits for or asks after.

    What it begins later may be under way when the recording ends.
    """
    begun: dict[int, str] = {}
    for place, events in enumerate(recording.steps):
        for event in _flat(events):
            if isinstance(event, Wait | Poll):
                begun.pop(event.ticket, None)
            elif place >= len(recording.steps) // 2:
                continue
            elif isinstance(event, Collective):
                begun[event.ticket] = f"{event.kind} over the team {event.team}"
            elif isinstance(event, Transfer):
                kind = "send" if event.is_sent else "receive"
                begun[event.ticket] = f"{kind} over the team {event.team}"
    return next(iter(begun.values()), None)


def is_ever_told_yes(recording: WorkerRecording) -> bool:
    """Whether a program asked if something was over, and heard that it was."""
    return any(
        isinstance(event, Poll) and event.answer
        for events in recording.steps
        for event in _flat(events)
    )


def _flat(events: Sequence[Any]) -> Iterator[Any]:
    for event in events:
        if isinstance(event, BackgroundWork):
            yield from _flat(event.events)
        else:
            yield event


def shapes_of(recording: WorkerRecording) -> dict[str, list[Any]]:
    """What is communicated in the steps of each phase; the size of a small message is left out."""
    found: dict[str, list[Any]] = {}
    for phase, events in zip(recording.phases, recording.steps, strict=True):
        found.setdefault(phase, []).append(_shape(events, ignore_below=SMALL_BYTES))
    return found


def period_of(recordings: Sequence[WorkerRecording], places: Sequence[int]) -> int:
    """After how many steps the end of a phase repeats itself, as far as was recorded.

    Workers of a node may take turns: who does what does not matter, only that it is done.
    """
    own = {
        id(each): [repr(_shape(each.steps[place])) for place in places]
        for each in {id(each): each for each in recordings}.values()
    }
    shapes = list(map(sorted, zip(*(own[id(each)] for each in recordings), strict=True)))
    settled = len(shapes) // 4  # before that a phase may still be filling its pipeline
    for period in range(1, len(shapes) // 2 + 1):
        if all(
            shapes[place] == shapes[place - period]
            for place in range(settled + period, len(shapes))
        ):
            return period
    return max(1, len(shapes) * 2 // 3)


def _shape(events: Sequence[Any], *, ignore_below: int = 0) -> list[Any]:
    """A step's communication without its tickets, which never repeat."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, Collective):
            num_bytes = event.num_bytes if event.num_bytes >= ignore_below else 0
            found.append((event.team, event.kind, num_bytes))
        elif isinstance(event, Transfer):
            num_bytes = event.num_bytes if event.num_bytes >= ignore_below else 0
            found.append((event.team, event.is_sent, event.is_outward, num_bytes))
        elif isinstance(event, Wait):
            found.append("wait")
        elif isinstance(event, Poll):
            found.append(event.answer)
        elif isinstance(event, BackgroundWork):
            found.append(_shape(event.events, ignore_below=ignore_below))
    return found


def _communication_in(events: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, Collective | Transfer | Wait | Poll | Pause):
            found.append(event)
        elif isinstance(event, BackgroundWork):
            found.append(_communication_in(event.events))
    return found
