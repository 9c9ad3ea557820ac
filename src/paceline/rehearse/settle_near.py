"""Settle many conditions of which it is known how conditions much like them were settled.

To play them all with one lateness after the other takes as many plays as the latest of them needs.
The right lateness is one with which exchanges have arrived in time, and with the one before they
have not. So each condition is played with these two alone. Those for which another one turns out
are settled as if nothing were known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.settle import MOST_LATENESS, Play, settle
from paceline.rehearse.timeline import Timeline

_Record: TypeAlias = Callable[[Assumptions], Recording]
_Some: TypeAlias = npt.NDArray[np.bool_]


def settle_near(near: npt.NDArray[np.int_], record: _Record, play: Play) -> Timeline:
    """Play with the least lateness for which nobody was told too early that all is there.

    Args:
        near: For each condition, the lateness of one much like it.
        record: Records under assumptions about time, the second time at once.
        play: Prices and plays a recording.

    """
    state = _State(near)
    timeline = None
    for lateness in range(MOST_LATENESS):
        some = state.asked_for(lateness)
        if not np.any(some):
            if lateness > near.max():
                break
            continue
        recording = record(Assumptions(lateness))
        if lateness > near.max():
            # Who waits in the end does not ask any longer, however late an exchange is.
            before = record(Assumptions(lateness - 1))
            if recording.communication == before.communication:
                break
        timeline = play(recording, left=some)
        state.take(some, timeline, lateness)
    if np.any(state.is_sooner):
        timeline = _settle_anew(state.is_sooner, record, play)
        state.take_all(state.is_sooner, timeline)
    assert timeline is not None and state.ends_s is not None
    return replace(
        timeline,
        recording=record(Assumptions()),
        played=replace(timeline.played, ends_s=state.ends_s[None], late_s=state.late_s),
        lateness=state.lateness,
    )


def _settle_anew(some: _Some, record: _Record, play: Play) -> Timeline:
    places = np.flatnonzero(some)

    def play_some(recording: Recording, *, left: _Some | None) -> Timeline:
        own = np.zeros(len(some), dtype=bool)
        own[places if left is None else places[left]] = True
        return play(recording, left=own)

    return settle(record, play_some)


class _State:
    """How far each condition is."""

    def __init__(self, near: npt.NDArray[np.int_]) -> None:
        self.near = near
        self.ends_s: npt.NDArray[np.float64] | None = None
        """(steps, conditions), of the last worker."""
        self.late_s = np.zeros(len(near))
        self.lateness = np.full(len(near), -2)
        """What a condition was played with last; -2: nothing yet that may be right."""
        self.is_sooner = np.zeros(len(near), dtype=bool)
        """Where exchanges have arrived with less than what was right for one like it."""

    def asked_for(self, lateness: int) -> _Some:
        """What is to be played with this lateness."""
        is_near = (self.near == lateness) | (self.near == lateness + 1)
        goes_on = (self.lateness == lateness - 1) & (self.late_s > 0.0)
        return np.asarray((is_near | goes_on) & ~self.is_sooner)

    def take(self, some: _Some, timeline: Timeline, lateness: int) -> None:
        """What a play of some of them has found."""
        late_s = np.broadcast_to(timeline.played.late_s, int(np.count_nonzero(some)))
        is_before = self.near[some] == lateness + 1
        places = np.flatnonzero(some)
        self.is_sooner[places[is_before & (late_s <= 0.0)]] = True
        self._put(places, ~is_before, timeline)
        self.lateness[places[~is_before]] = lateness

    def take_all(self, some: _Some, timeline: Timeline) -> None:
        """What settling some of them anew has found."""
        places = np.flatnonzero(some)
        self._put(places, np.ones(len(places), dtype=bool), timeline)
        self.lateness[places] = 0 if timeline.lateness is None else timeline.lateness

    def _put(self, places: npt.NDArray[np.int_], kept: _Some, timeline: Timeline) -> None:
        ends_s = timeline.played.ends_s.max(axis=0)
        if self.ends_s is None:
            self.ends_s = np.zeros((len(ends_s), len(self.near)))
        self.ends_s[:, places[kept]] = np.broadcast_to(ends_s, (len(ends_s), len(places)))[:, kept]
        self.late_s[places[kept]] = np.broadcast_to(timeline.played.late_s, len(places))[kept]
