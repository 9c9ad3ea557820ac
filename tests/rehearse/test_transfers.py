"""Messages in a play: small cases whose times can be said by hand."""

from __future__ import annotations

import math

import pytest

from paceline.teams.journal import BackgroundWork, Collective, Transfer, Wait
from plays import call, play_node, program


def sends(ticket: int, offset: int, num_bytes: int = 1, *, out: bool = False) -> Transfer:
    return Transfer(ticket, "world", True, out, offset, num_bytes)


def receives(
    ticket: int, offset: int, num_bytes: int = 1, *, out: bool = False, behind: bool = False
) -> Transfer:
    return Transfer(ticket, "world", False, out, offset, num_bytes, behind)


def test_a_message_holds_up_its_two_workers_and_nobody_else() -> None:
    first = program([call("quick"), sends(1, 1), Wait(1)])
    second = program([call("slow"), receives(1, -1), Wait(1)])
    third = program([call("quick")])
    played = play_node([first, second, third], quick=1.0, slow=5.0)
    assert played.ends_s.tolist() == [[15.0], [15.0], [1.0]]


def test_what_a_worker_sends_to_several_goes_one_after_another() -> None:
    first = program([sends(1, 1), sends(2, 2), Wait(1), call("work"), Wait(2)])
    second, third = (program([receives(1, -away), Wait(1)]) for away in (1, 2))
    played = play_node([first, second, third], work=1.0)
    assert played.ends_s.tolist() == [[20.0], [10.0], [20.0]]


def test_a_message_is_hidden_by_what_is_computed_meanwhile() -> None:
    first = program([sends(1, 1), call("work"), Wait(1)])
    second = program([receives(1, -1), call("work"), Wait(1)])
    assert play_node([first, second], work=15.0).ends_s.tolist() == [[15.0], [15.0]]


@pytest.mark.parametrize("behind", [False, True])
def test_two_that_both_send_first_are_carried_one_after_another(behind: bool) -> None:
    """As Gloo does; whoever receives first has both ways at once."""
    first = program([sends(1, 1), receives(2, 1, behind=behind), Wait(1), Wait(2)])
    second = program([sends(1, -1), receives(2, -1, behind=behind), Wait(1), Wait(2)])
    end_s = 20.0 if behind else 10.0
    assert play_node([first, second]).ends_s.tolist() == [[end_s], [end_s]]
    quick = play_node([first, second], serial=False)  # NCCL has another way
    assert quick.ends_s.tolist() == [[10.0], [10.0]]


def test_nodes_that_are_alike_send_to_each_other_what_one_of_them_sends() -> None:
    """The second worker sends to the next node's first one, which gets it from the node before."""
    first = program([call("work"), receives(1, 1, out=True), Wait(1)])
    second = program([sends(1, -1, out=True), Wait(1)])
    assert play_node([first, second], work=4.0).ends_s.tolist() == [[14.0], [14.0]]
    ring = program([sends(1, 0, out=True), receives(2, 0, out=True), Wait(1), Wait(2)])
    assert play_node([ring]).ends_s.tolist() == [[10.0]]


def test_a_nodes_workers_share_the_card_for_what_they_send_and_not_for_what_they_receive() -> None:
    both = [sends(1, 0, out=True), receives(2, 0, out=True), Wait(1), Wait(2)]
    assert play_node([program(both)] * 2).ends_s.tolist() == [[20.0], [20.0]]
    first = program([receives(1, 1, out=True), Wait(1)])
    second = program([sends(1, -1, out=True), Wait(1)])
    assert play_node([first, second]).ends_s.tolist() == [[10.0], [10.0]]


def test_a_message_to_a_node_that_does_otherwise_costs_its_time() -> None:
    """The first node tells the others; it is the one that was recorded."""
    root = program([sends(1, 0, out=True), sends(2, 0, out=True), Wait(1), Wait(2)])
    assert play_node([root]).ends_s.tolist() == [[20.0]]


def test_the_last_messages_may_be_received_after_what_was_recorded() -> None:
    """A pipeline: what is sent in one step is taken in the next but one."""
    first = program([sends(1, 1)], [sends(2, 1)], [Wait(1), sends(3, 1)], [Wait(2), sends(4, 1)])
    second = program([call("work")], [], [receives(1, -1), Wait(1)], [receives(2, -1), Wait(2)])
    ends_s = [[0.0, 0.0, 11.0, 21.0], [1.0, 1.0, 11.0, 21.0]]
    assert play_node([first, second], work=1.0).ends_s.tolist() == ends_s


def test_messages_in_the_background_find_each_other() -> None:
    workers = [
        program([BackgroundWork(1, (event, Wait(2))), call("work"), Wait(1)])
        for event in (sends(2, 1), receives(2, -1))
    ]
    assert play_node(workers, work=15.0).ends_s.tolist() == [[15.0], [15.0]]


def test_messages_that_only_one_side_knows_of_are_an_error() -> None:
    silent = program([call("work")])
    lost = r"from worker 0 of a node to worker 1 .*, 1 are sent and 0 are received in 1 steps\.$"
    with pytest.raises(ValueError, match=lost):
        play_node([program([sends(1, 1), Wait(1)]), silent], work=1.0)
    missed = r"from worker 0 of a node to worker 1 .*, 0 are sent and 1 are received in 1 steps\.$"
    with pytest.raises(ValueError, match=missed):
        play_node([silent, program([receives(1, -1), Wait(1)])], work=1.0)


def test_two_that_wait_for_their_sends_before_they_receive_wait_for_ever() -> None:
    first = program([sends(1, 1), Wait(1), receives(2, 1), Wait(2)])
    second = program([sends(1, -1), Wait(1), receives(2, -1), Wait(2)])
    with pytest.raises(ValueError, match=r"worker 0 of a node begins send 1 B, and the other"):
        play_node([first, second])


def test_two_that_vary_are_as_late_as_the_later_one() -> None:
    first = program([call("work"), sends(1, 1), Wait(1)])
    second = program([call("work"), receives(1, -1), Wait(1)])
    later = 0.1 * 4.0 / math.sqrt(math.pi)  # the mean of the larger of two normal numbers
    ends = play_node([first, second], work=4.0, jitter=0.1).ends_s
    assert ends == pytest.approx(14.0 + later, rel=1e-3)


def test_a_node_sends_more_than_is_received() -> None:
    first = program(*[[sends(2 * n, 1), sends(2 * n + 1, 1)] for n in range(6)])
    second = program(*[[receives(n, -1), Wait(n)] for n in range(6)])
    with pytest.raises(ValueError, match=r"6 are sent and 3 are received in 3 steps"):
        play_node([first, second])


def test_messages_of_another_team_are_others() -> None:
    first = program([sends(1, 1), Wait(1)])
    second = program([Transfer(1, "node", False, False, -1, 1), Wait(1)])
    with pytest.raises(ValueError, match=r'by the team "world", 1 are sent and 0'):
        play_node([first, second])


def test_nodes_that_take_turns_in_sending_and_receiving_do_not_wait_for_ever() -> None:
    """Even nodes send and then receive; odd ones, which are not played, the other way round."""
    even = program([sends(1, 0, out=True), Wait(1), receives(2, 0, out=True), Wait(2)])
    assert play_node([even]).ends_s.tolist() == [[20.0]]


def test_messages_to_other_nodes_pair_up_in_their_step_alone() -> None:
    """What comes in the second step is not what was sent in the first."""
    first = program(
        [sends(1, 0, out=True), Wait(1), call("work")], [receives(2, 0, out=True), Wait(2)]
    )
    assert play_node([first], work=3.0).ends_s.tolist() == [[13.0, 23.0]]


def test_a_collective_that_is_begun_does_not_hold_up_a_message() -> None:
    first = program(
        [Collective(1, "node", "all_reduce", 1), sends(2, 1), Wait(2), call("work"), Wait(1)]
    )
    second = program([receives(1, -1), Wait(1), Collective(2, "node", "all_reduce", 1), Wait(2)])
    assert play_node([first, second], work=1.0).ends_s.tolist() == [[20.0], [20.0]]


def test_a_nodes_workers_share_the_card_for_what_they_receive() -> None:
    gathers = program([receives(1, 0, out=True), receives(2, 0, out=True), Wait(1), Wait(2)])
    assert play_node([gathers] * 2).ends_s.tolist() == [[40.0], [40.0]]
