"""Workers that make different calls over one team: found by comparing what each has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.teams.beat import Beat, Member, join_names, name_all
from paceline.teams.watch import Begun

MembersOf = Callable[[str, int], Sequence[int]]


def find_disagreement(
    beats: Mapping[int, Beat], members: Sequence[Member], members_of: MembersOf
) -> str | None:
    """The first operation of a team that is not the same for all of its members."""
    for rank, beat in beats.items():
        for team in beat.begun:
            own = [each for each in members_of(team, rank) if team in beats[each].begun]
            found = first_difference({each: beats[each].begun[team] for each in own})
            if found is not None:
                steps = {beats[each].step + 1 for each in own}
                return describe(team, *found, members=members, step=min(steps))
    return None


def first_difference(
    begun: Mapping[int, Sequence[Begun]],
) -> tuple[int, dict[int, Begun]] | None:
    """The number of the first operation that differs, and what it is for each worker."""
    by_number: dict[int, dict[int, Begun]] = {}
    for rank, calls in begun.items():
        for call in calls:
            by_number.setdefault(call.number, {})[rank] = call
    for number in sorted(by_number):
        if len(set(by_number[number].values())) > 1:
            return number, by_number[number]
    return None


def describe(
    team: str, number: int, calls: Mapping[int, Begun], *, members: Sequence[Member], step: int
) -> str:
    """Who calls what, in a sentence."""
    is_alike = len({(call.kind, call.num_bytes) for call in calls.values()}) == 1
    ranks_by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        what = f"{call.kind} of {call.num_bytes} bytes" + (f" ({call.how})" if is_alike else "")
        ranks_by_call.setdefault(what, []).append(rank)
    sides = [f"{name_all(ranks, members)} begins {what}" for what, ranks in ranks_by_call.items()]
    return (
        f"the workers disagree on operation {number} of the team {team}, at step {step}: "
        f"{join_names(sides)}; all workers must make the same calls in the same order"
    )
