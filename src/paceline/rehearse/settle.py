"""Record and play until what the programs were told about time is what happened.

A strategy may ask whether an exchange is over, or what time it is. Nobody knows before the play, so
the recording assumes an answer, and is made again where the play has another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.timeline import Timeline

_MOST_LATENESS = 64
_MOST_READINGS = 64
_TOLERANCE = 1e-9

_Readings: TypeAlias = Mapping[tuple[int, int], tuple[float, ...]]


def settle(
    record: Callable[[Assumptions], Recording], play: Callable[[Recording], Timeline]
) -> Timeline:
    """Play with the least lateness for which nobody was told too early that all is there.

    Args:
        record: Records under assumptions about time.
        play: Prices and plays a recording.

    """
    best: Timeline | None = None
    before = None
    for lateness in range(_MOST_LATENESS):
        recording = record(Assumptions(lateness))
        if best is not None:
            communication = recording.communication
            if communication == before:  # who waits in the end does not ask any longer
                break
            before = communication
        timeline = play(recording)
        if recording.is_time_used:
            timeline = _with_time(lateness, timeline, record, play)
        best = timeline if best is None else best.settled_by(timeline)
        if not np.any(best.played.premature):
            break
    assert best is not None
    return best


def _with_time(
    lateness: int,
    timeline: Timeline,
    record: Callable[[Assumptions], Recording],
    play: Callable[[Recording], Timeline],
) -> Timeline:
    """Record with the clock of the last play until both agree.

    What a program reads depends on what it did before alone, so each round makes one more decision
    of the programs right, and usually all of them.
    """
    readings: _Readings = {}
    for _ in range(_MOST_READINGS):
        timeline = play(record(Assumptions(lateness, readings)))
        found = _readings_of(timeline)
        if _agree(readings, found):
            break
        readings = found
    return timeline


def _readings_of(timeline: Timeline) -> _Readings:
    """Of all workers of a node; those that were not played read what the one like them reads."""
    recording = timeline.recording
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    for role, own in zip(timeline.roles, timeline.played.readings, strict=True):
        workers = recording.workers[role.node_size]
        for place, worker in enumerate(workers):
            if place == role.index or worker is workers[role.index]:
                found.setdefault((role.node_size, place), own)
    return found


def _agree(one: _Readings, other: _Readings) -> bool:
    return one.keys() == other.keys() and all(
        len(one[key]) == len(other[key])
        and np.allclose(one[key], other[key], rtol=_TOLERANCE, atol=_TOLERANCE)
        for key in one
    )
