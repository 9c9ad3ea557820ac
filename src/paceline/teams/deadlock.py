"""Workers that wait for each other, so that none of them will ever go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.teams.beat import Beat, Member, join_names, name_all
from paceline.teams.watch import BACKGROUND, MEETING, Call

MissingOf = Callable[[int, Call, Mapping[int, Beat]], list[int]]


def find_deadlock(
    beats: Mapping[int, Beat], members: Sequence[Member], missing_of: MissingOf, *, least_s: float
) -> str | None:
    """Who waits for whom, if all wait, each in a call that somebody else has not come to.

    A call that all have come to is under way, over a slow network perhaps, and a worker that
    computes may still come: then nothing is certain. A single message tells too little.
    """
    for rank, beat in beats.items():
        if beat.is_over or not beat.front_waits:
            return None
        if min(wait.for_s for wait in beat.front_waits) < least_s:
            return None
        if beat.is_background_busy and not any(wait.is_background for wait in beat.waits):
            return None
        calls = [wait.call for wait in beat.waits if wait.call.team != BACKGROUND]
        if not calls or any(
            call.peer is not None or not missing_of(rank, call, beats) for call in calls
        ):
            return None
    places: dict[str, list[int]] = {}
    for rank, beat in beats.items():
        call = next(wait.call for wait in beat.waits if wait.call.team != BACKGROUND)
        at = f"after step {beat.step}" if call.team == MEETING else beat.at()
        places.setdefault(f"{call} {at}", []).append(rank)
    groups = [f"{name_all(ranks, members)} in {place}" for place, ranks in places.items()]
    is_ending = any(wait.call.team == MEETING for beat in beats.values() for wait in beat.waits)
    advice = (
        "the workers have unequal numbers of batches; put the loop into `with pace.join():`"
        if is_ending
        else "all workers must make the same calls in the same order"
    )
    return f"the workers wait for each other: {join_names(groups)}; {advice}"
