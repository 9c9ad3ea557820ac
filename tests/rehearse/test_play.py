"""Playing programs: small cases whose times can be said by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from paceline.rehearse.play import play_roles
from paceline.rehearse.program import NodeRules, Role
from paceline.rehearse.record_worker import Replay, WorkerRecording
from paceline.rehearse.slowest import slowest_of
from paceline.teams.journal import BackgroundWork, Collective, Pause, Poll, Wait
from plays import ALL_REDUCE_S, call, collective_of, play_node, priced, program, world


def test_a_collective_begins_when_its_last_member_arrives() -> None:
    quick = program([call("quick"), world(1), Wait(1)])
    slow = program([call("slow"), world(1), Wait(1)])
    played = play_node([quick, slow], quick=1.0, slow=5.0)
    assert played.ends_s.tolist() == [[15.0], [15.0]]


def test_what_is_waited_for_later_is_hidden() -> None:
    events = [Replay(0, 1), world(1), Replay(1, 2), Wait(1)]
    both = [program(events)] * 2
    played = play_node(both, host_s=[0, 0], device_s=[3.0, 8.0], serial=False)
    assert played.ends_s.max() == 13.0  # 3 + 10: the other 8 seconds of work are behind it
    played = play_node(both, host_s=[0, 0], device_s=[3.0, 12.0], serial=False)
    assert played.ends_s.max() == 15.0


def test_communication_under_way_takes_speed_from_computing() -> None:
    events = [Replay(0, 1), world(1), Replay(1, 2), Wait(1)]
    for work_s in (2.0, 4.0, 8.0):
        # From 3 to 13 computing has 80 % of its speed: 8 seconds of work take until 13.
        played = play_node(
            [program(events)], host_s=[0, 0], device_s=[3.0, work_s], interference={"world": 0.2}
        )
        assert played.ends_s.max() == pytest.approx(13.0)
    played = play_node(
        [program(events)], host_s=[0, 0], device_s=[3.0, 12.0], interference={"world": 0.2}
    )
    assert played.ends_s.max() == pytest.approx(17.0)


@pytest.mark.parametrize(
    ("work_s", "end_s"),
    [
        (0.0, 10.0),  # nobody computes: as ever
        (8.0, 16.0),  # a fifth of it is done after 8 seconds, and the rest takes 8 more
        (40.0, 40.0),  # four times as long, all of it beside computing
        (60.0, 60.0),
    ],
)
def test_a_collective_beside_computing_gets_on_more_slowly(work_s: float, end_s: float) -> None:
    events = [world(1), call("work"), Wait(1)]
    factor = {"world": 4.0, "node": 1.0, "across": 1.0}
    played = play_node([program(events)] * 2, work=work_s, busy_factor=factor)
    assert played.ends_s.max() == pytest.approx(end_s)


def test_only_what_is_computed_before_the_result_is_needed_slows_a_collective_down() -> None:
    events = [call("work"), world(1), Wait(1), call("work")]
    factor = {"world": 4.0, "node": 1.0, "across": 1.0}
    played = play_node([program(events)] * 2, work=5.0, busy_factor=factor)
    assert played.ends_s.max() == pytest.approx(5.0 + ALL_REDUCE_S + 5.0)


def test_what_gets_on_more_slowly_takes_no_more_from_computing() -> None:
    events = [world(1), call("work"), Wait(1)]
    factor = {"world": 2.0, "node": 1.0, "across": 1.0}
    played = play_node(
        [program(events)] * 2, work=30.0, busy_factor=factor, interference={"world": 0.2}
    )
    # A tenth of computing's speed for 20 seconds, not a fifth.
    assert played.ends_s.max() == pytest.approx(32.0)


def test_an_exchange_in_the_background_gets_on_more_slowly_until_it_is_waited_for() -> None:
    beside = (Collective(11, "across", "all_reduce", 1), Wait(11))
    steps: list[list[Any]] = [
        [BackgroundWork(1, beside), call("work")],
        [call("work")],
        [Wait(1), call("work")],
    ]
    factor = {"world": 1.0, "node": 1.0, "across": 5.0}
    played = play_node([program(*steps)], work=10.0, busy_factor=factor)
    # Two fifths of it are done after two steps; the rest takes 6 seconds.
    assert played.ends_s.tolist() == [[10.0, 20.0, pytest.approx(36.0)]]


def test_a_team_does_one_collective_at_a_time() -> None:
    events = [world(1), world(2), Wait(1), Wait(2)]
    played = play_node([program(events)] * 2)
    assert played.ends_s.max() == 2 * ALL_REDUCE_S


def test_a_slow_host_holds_up_the_device() -> None:
    events = [program([Replay(0, 3)])]
    played = play_node(events, host_s=[4.0] * 3, device_s=[1.0] * 3, serial=False)
    assert played.ends_s.max() == 13.0
    played = play_node(events, host_s=[1.0] * 3, device_s=[4.0] * 3, serial=False)
    assert played.ends_s.max() == 13.0
    played = play_node(events, host_s=[1.0] * 3, device_s=[4.0] * 3, serial=True)
    assert played.ends_s.max() == 15.0


def test_stretches_of_calls_take_what_the_calls_take_one_by_one() -> None:
    rng = np.random.default_rng(3)
    host_s, device_s = rng.uniform(0, 1, 40), rng.uniform(0, 1, 40) * (rng.uniform(0, 1, 40) < 0.7)
    ends = []
    for cuts in ([0, 40], [0, 7, 11, 12, 30, 40], list(range(41))):
        events = [Replay(a, b) for a, b in pairwise(cuts)]
        # A name change ends a stretch; a collective of nobody else would do the same.
        ends.append(
            play_node([program(events)], host_s=host_s, device_s=device_s, serial=False).ends_s
        )
    host, device = 0.0, 0.0
    for issue_s, work_s in zip(host_s, device_s, strict=True):
        host += issue_s
        device = max(device, host) + work_s
    for end in ends:
        assert float(np.max(end)) == pytest.approx(max(host, device))


def test_background_work_runs_beside_and_in_order() -> None:
    beside = (Collective(11, "across", "all_reduce", 1), Wait(11), Pause(2.0))
    again = (Collective(12, "across", "all_reduce", 1), Wait(12))
    first = [call("work"), BackgroundWork(1, beside), BackgroundWork(2, again), call("work")]
    played = play_node([program(first, [Wait(2), call("work")])], work=5.0)
    # Begun at 5, over at 15, paused until 17, the second over at 27; the first step ends at 10.
    assert played.ends_s.tolist() == [[10.0, 32.0]]


def test_it_does_not_matter_which_worker_of_a_node_carries_an_exchange() -> None:
    # One talks to other nodes and then passes three results on; all of it takes half of the speed.
    passed_on = [
        event
        for ticket in (3, 4, 5)
        for event in (Collective(ticket, "node", "broadcast", 1), Wait(ticket))
    ]
    carried = (Collective(2, "across", "all_reduce", 1), Wait(2), *passed_on)

    def worker(events: tuple[Any, ...]) -> WorkerRecording:
        return program([BackgroundWork(1, events), Replay(0, 1), Wait(1)])

    rules: dict[str, Any] = {
        "host_s": [0],
        "device_s": [100.0],
        "interference": {"across": 0.5, "node": 0.5},
    }
    carrier, other = worker(carried), worker(tuple(passed_on))
    first = play_node([carrier, other], **rules).ends_s
    second = play_node([other, carrier], **rules).ends_s
    # 100 s, and half of the time of what is under way: 4 x 10 s of one, 3 x 10 of the other.
    assert first.tolist() == [[120.0], [115.0]]
    assert second.tolist() == [[115.0], [120.0]]


def test_who_is_told_too_early_is_found_out() -> None:
    beside = BackgroundWork(1, (Collective(11, "across", "all_reduce", 1), Wait(11)))
    for wait_s, premature in ((9.0, True), (11.0, False)):
        played = play_node([program([beside, call("work"), Poll(1, True)])], work=wait_s)
        assert bool(played.premature) is premature
        played = play_node([program([beside, call("work"), Poll(1, False)])], work=wait_s)
        assert not played.premature


def test_workers_that_talk_across_at_once_share_the_card() -> None:
    events = [Collective(1, "across", "all_reduce", 1), Wait(1)]
    both = play_node([program(events)] * 2)
    assert both.ends_s.max() == 2 * ALL_REDUCE_S
    one = play_node([program(events), program([])])
    assert one.ends_s.max() == ALL_REDUCE_S


def test_nodes_that_differ_wait_for_the_slower() -> None:
    events = program([call("work"), world(1), Wait(1), Collective(2, "node", "all_reduce", 1)])
    roles = [
        Role(
            program=priced([events], work=work_s)[0],
            rules=NodeRules(workers=1, serial=True, collective=collective_of(1)),
            node_kind=kind,
        )
        for kind, work_s in enumerate((1.0, 4.0))
    ]
    assert play_roles(roles).ends_s.tolist() == [[14.0], [14.0]]


def test_many_plays_at_once_are_the_single_ones() -> None:
    events = [
        Replay(0, 2), world(1), Replay(2, 4), Wait(1), call("work"),
        BackgroundWork(2, (Collective(3, "across", "all_reduce", 2), Wait(3))), Replay(0, 4),
        Wait(2),
    ]  # fmt: skip
    rng = np.random.default_rng(4)
    device_s = rng.uniform(0, 9, (5, 4))
    given: dict[str, Any] = {"host_s": [1.0] * 4, "work": 2.0, "interference": {"world": 0.3}}
    together = play_node([program(events)], device_s=device_s, **given).ends_s
    for place in range(5):
        alone = play_node([program(events)], device_s=device_s[place], **given).ends_s
        assert together[..., place] == pytest.approx(alone)


@pytest.mark.parametrize(("count", "mean"), [(2, 0.56419), (10, 1.53875), (1000, 3.24144)])
def test_the_slowest_of_many(count: int, mean: float) -> None:
    assert slowest_of(count)[0] == pytest.approx(mean, abs=1e-4)  # David & Nagaraja's tables
    draws = np.random.default_rng(5).standard_normal((20000, count if count < 100 else 1)).max(1)
    if count < 100:
        assert slowest_of(count)[1] == pytest.approx(draws.var(), rel=0.05)


def test_a_synchronous_step_takes_as_long_as_the_slowest_worker() -> None:
    steps = [[call("work"), world(2 * n), Wait(2 * n)] for n in range(1, 5)]
    one = priced([program(*steps)], work=10.0)[0]
    rules = NodeRules(workers=4, nodes=8, serial=True, collective=collective_of(4), jitter=0.05)
    ends = play_roles([Role(program=one, rules=rules)]).ends_s[0]
    rng = np.random.default_rng(6)
    drawn = rng.normal(10.0, 0.5, (20000, 8, 4)).max(axis=(1, 2)).mean()
    # The slowest of the nodes' slowest is not quite normal: a hundredth of a second in ten.
    assert np.diff(ends).mean() == pytest.approx(drawn + ALL_REDUCE_S, abs=0.05)


def test_nodes_that_vary_hold_up_others_and_not_their_own_workers() -> None:
    steps = [[call("work"), world(2 * n), Wait(2 * n)] for n in range(1, 5)]
    one = priced([program(*steps)], work=10.0)[0]

    def step_s(nodes: int) -> float:
        rules = NodeRules(
            workers=4, nodes=nodes, serial=True, collective=collective_of(4), node_jitter=0.05
        )
        return float(np.diff(play_roles([Role(program=one, rules=rules)]).ends_s[0]).mean())

    assert step_s(1) == pytest.approx(10.0 + ALL_REDUCE_S)
    drawn = np.random.default_rng(6).normal(10.0, 0.5, (20000, 8)).max(axis=1).mean()
    assert step_s(8) == pytest.approx(drawn + ALL_REDUCE_S, abs=0.05)


def test_who_meets_rarely_waits_less() -> None:
    steps = [[call("work")] for _ in range(15)] + [[call("work"), world(1), Wait(1)]]
    one = priced([program(*steps)], work=10.0)[0]
    rules = NodeRules(workers=1, nodes=16, serial=True, collective=collective_of(1), jitter=0.1)
    end = float(play_roles([Role(program=one, rules=rules)]).ends_s.max())
    drawn = np.random.default_rng(7).normal(10, 1, (20000, 16, 16)).sum(axis=2).max(axis=1).mean()
    assert end - ALL_REDUCE_S == pytest.approx(drawn, rel=0.002)


def test_a_collective_that_one_member_leaves_out_is_an_error() -> None:
    joins, leaves_out = program([world(1), Wait(1)]), program([call("work")])
    with pytest.raises(ValueError, match=r"^Workers would wait for ever: worker 0 of a node "):
        play_node([joins, leaves_out], work=1.0)
    beside = program([BackgroundWork(1, (Collective(2, "node", "broadcast", 1), Wait(2)))])
    missing = r'worker 0 of a node begins a collective of its team "node", and worker 1 of a node n'
    with pytest.raises(ValueError, match=missing):
        play_node([beside, leaves_out], work=1.0)


def test_members_that_begin_different_collectives_are_an_error() -> None:
    first = program([Collective(1, "node", "all_reduce", 4), Wait(1)])
    second = program([Collective(1, "node", "broadcast", 4), Wait(1)])
    differ = r"worker 0 of a node begins all_reduce 4 B where worker 1 of a node begins broadcast 4"
    with pytest.raises(ValueError, match=differ):
        play_node([first, second])
