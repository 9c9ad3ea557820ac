"""Record and play until what the programs were told about time is what happened.

A strategy may ask whether an exchange is over, or what time it is. Nobody knows before the play, so
the recording assumes an answer, and is made again where the play has another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.timeline import Timeline

MOST_LATENESS = 64
_MOST_READINGS = 64
_TOLERANCE = 1e-9

_Record: TypeAlias = Callable[[Assumptions], Recording]
_Play: TypeAlias = Callable[[Recording], Timeline]
_Readings: TypeAlias = Mapping[tuple[int, int], tuple[float, ...]]


class Play(Protocol):
    """How a recording is priced and played."""

    def __call__(self, recording: Recording, /, *, left: npt.NDArray[np.bool_] | None) -> Timeline:
        """Under one condition; or under all of many, or only those that are ``left``."""


def settle(record: _Record, play: Play) -> Timeline:
    """Play with the least lateness for which nobody was told too early that all is there.

    Args:
        record: Records under assumptions about time.
        play: Prices and plays a recording.

    """
    play_all = partial(play, left=None)
    timeline = _timed(record(Assumptions()), record, play_all)
    if not np.any(timeline.played.premature):
        return timeline
    if np.ndim(timeline.played.premature):
        return _settle_many(timeline, record, play)
    return _settle_one(timeline, record, play_all)


def _settle_one(timeline: Timeline, record: _Record, play: _Play) -> Timeline:
    """Of one cluster: jump to where its exchanges should be there, and look on both sides."""
    early, fine = timeline, None
    is_near = True
    for _ in range(MOST_LATENESS):
        low = early.recording.assumed.lateness
        missing = math.ceil(early.played.late_s / max(early.step_s, _TOLERANCE))
        # An exchange that takes longer than a period is waited for.
        trial = max(low + 1, min(low + missing, early.recording.schedule.longest_period))
        if fine is not None:
            high = fine.recording.assumed.lateness
            if high == low + 1:
                break
            trial = min(trial, high - 1) if is_near else (low + high) // 2
        recording = record(Assumptions(trial))
        # Who waits in the end does not ask any longer, however late an exchange is.
        if fine is None and recording.communication == early.recording.communication:
            break
        timeline = _timed(recording, record, play)
        if timeline.played.premature:
            early, is_near = timeline, True
        else:
            fine, is_near = timeline, fine is None
    return early if fine is None else fine


def _settle_many(best: Timeline, record: _Record, play: Play) -> Timeline:
    """Under many conditions at once, which settle one after the other; only the others go on."""
    before = None
    for lateness in range(1, MOST_LATENESS):
        recording = record(Assumptions(lateness))
        communication = recording.communication
        if communication == before:  # who waits in the end does not ask any longer
            break
        before = communication
        play_left = partial(play, left=best.played.premature)
        best = best.settled_by(_timed(recording, record, play_left))
        if not np.any(best.played.premature):
            break
    return best


def _timed(recording: Recording, record: _Record, play: _Play) -> Timeline:
    timeline = play(recording)
    if recording.is_time_used:
        timeline = _with_time(recording.assumed.lateness, timeline, record, play)
    return timeline


def _with_time(
    lateness: int,
    timeline: Timeline,
    record: _Record,
    play: _Play,
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
