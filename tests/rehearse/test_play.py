"""Playing recorded programs: small cases whose times can be said by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.rehearse.play import Costs, play
from paceline.rehearse.recording import Recording, Replay
from paceline.steps import Call
from paceline.teams.virtual import Await, Begin, Beside, Pause

ALL_REDUCE_S = 10.0


def costs(
    host_s: list[float], device_s: list[float], *, serial: bool, calls: dict[str, float]
) -> Costs:
    def collective(team: str, kind: str, num_bytes: int, at_once: int) -> float:
        return ALL_REDUCE_S * num_bytes * (at_once if team == "across" else 1)

    return Costs(
        host_s=np.array(host_s),
        device_s=np.array(device_s),
        call=lambda call: (0.0, calls[call.op]),
        collective=collective,
        serial=serial,
    )


def program(*steps: list[Any]) -> Recording:
    return Recording(
        steps=tuple(tuple(events) for events in steps),
        status=tuple({} for _ in steps),
        extra_bytes=0,
    )


def call(op: str) -> Call:
    return Call(op, "optimizer", (), 0, 1)


def world(ticket: int, num_bytes: int = 1) -> Begin:
    return Begin(ticket, "world", "all_reduce", num_bytes)


def test_a_collective_begins_when_its_last_member_arrives() -> None:
    quick = program([call("quick"), world(1), Await(1)])
    slow = program([call("slow"), world(1), Await(1)])
    played = play([quick, slow], costs([], [], serial=True, calls={"quick": 1.0, "slow": 5.0}))
    assert played.ends_s.tolist() == [[15.0], [15.0]]


def test_what_is_waited_for_later_is_hidden() -> None:
    events = [Replay(0, 1), world(1), Replay(1, 2), Await(1)]
    played = play([program(events)] * 2, costs([0, 0], [3.0, 8.0], serial=False, calls={}))
    assert played.ends_s.max() == 13.0  # 3 + 10: the other 8 seconds of work are behind it
    played = play([program(events)] * 2, costs([0, 0], [3.0, 12.0], serial=False, calls={}))
    assert played.ends_s.max() == 15.0


def test_a_team_does_one_collective_at_a_time() -> None:
    events = [world(1), world(2), Await(1), Await(2)]
    played = play([program(events)] * 2, costs([], [], serial=True, calls={}))
    assert played.ends_s.max() == 2 * ALL_REDUCE_S


def test_a_slow_host_holds_up_the_device() -> None:
    events = [Replay(0, 3)]
    played = play([program(events)], costs([4.0] * 3, [1.0] * 3, serial=False, calls={}))
    assert played.ends_s.max() == 13.0
    played = play([program(events)], costs([1.0] * 3, [4.0] * 3, serial=False, calls={}))
    assert played.ends_s.max() == 13.0
    played = play([program(events)], costs([1.0] * 3, [4.0] * 3, serial=True, calls={}))
    assert played.ends_s.max() == 15.0


def test_background_work_runs_beside_and_in_order() -> None:
    beside = (Begin(11, "across", "all_reduce", 1), Await(11), Pause(2.0))
    again = (Begin(12, "across", "all_reduce", 1), Await(12))
    first = [call("work"), Beside(1, beside), Beside(2, again), call("work")]
    played = play(
        [program(first, [Await(2), call("work")])],
        costs([], [], serial=True, calls={"work": 5.0}),
    )
    # Begun at 5, over at 15, paused until 17, the second over at 27; the first step ends at 10.
    assert played.ends_s.tolist() == [[10.0, 32.0]]


def test_workers_that_talk_across_at_once_share_the_card() -> None:
    events = [Begin(1, "across", "all_reduce", 1), Await(1)]
    both = play([program(events)] * 2, costs([], [], serial=True, calls={}))
    assert both.ends_s.max() == 2 * ALL_REDUCE_S
    one = play([program(events), program([])], costs([], [], serial=True, calls={}))
    assert one.ends_s.max() == ALL_REDUCE_S


def test_programs_that_never_meet_are_found_out() -> None:
    with pytest.raises(AssertionError, match="wait for each other"):
        play(
            [program([world(1), Await(1)]), program([call("work")])],
            costs([], [], serial=True, calls={"work": 1.0}),
        )
