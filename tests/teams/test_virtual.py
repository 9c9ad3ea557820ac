"""Virtual teams write down what a program would communicate."""

from __future__ import annotations

import pytest
import torch

from paceline.teams.journal import BackgroundWork, Collective, Journal, Pause, Transfer, Wait
from paceline.teams.virtual import virtual_workers


def test_collectives_are_written_down_with_their_bytes() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2, 2), node=1, index=1)
    pending = workers.world.all_reduce(torch.zeros(10))
    workers.node.broadcast(torch.zeros(3, dtype=torch.float64), 0).wait()
    workers.across.all_gather(torch.zeros(6), torch.zeros(2)).wait()
    pending.wait()
    pending.wait()  # waiting again costs nothing
    assert journal.take() == [
        Collective(1, "world", "all_reduce", 40),
        Collective(2, "node", "broadcast", 24),
        Wait(2),
        Collective(3, "across", "all_gather", 24),
        Wait(3),
        Wait(1),
    ]
    assert journal.take() == []
    assert workers.world.bytes_handed == 40


def test_a_worker_sees_its_own_place() -> None:
    workers = virtual_workers(Journal(), (2, 1, 3), node=2, index=1)
    assert (workers.world.size, workers.world.rank) == (6, 4)
    assert (workers.node.size, workers.node.rank) == (3, 1)
    assert (workers.across.size, workers.across.rank) == (2, 1)
    assert workers.ranks_by_node == ((0, 1), (2,), (3, 4, 5))
    assert workers.node_index == 2


def test_agreeing_blocks_and_members_are_alike() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2), node=0, index=0)
    assert workers.world.agree(3.0, "mean") == 3.0
    assert workers.world.agree(3.0, "sum") == 12.0
    assert [type(event) for event in journal.take()] == [Collective, Wait, Collective, Wait]


def test_a_barrier_costs_what_agreeing_costs() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2), node=0, index=0)
    workers.node.barrier()
    assert journal.take() == [Collective(1, "node", "all_reduce", 8), Wait(1)]


def test_background_work_has_a_list_of_its_own() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (1, 1), node=0, index=0)
    background = workers.background

    def work() -> None:
        background.across.all_reduce(torch.zeros(4)).wait()
        background.pause(0.5)

    pending = background.run(work, device=torch.device("cpu"))
    workers.across.all_reduce(torch.zeros(1)).wait()
    pending.wait()
    beside, begin, first, second = journal.take()
    assert isinstance(beside, BackgroundWork)
    assert [type(event) for event in beside.events] == [Collective, Wait, Pause]
    assert begin == Collective(begin.ticket, "across", "all_reduce", 4)
    assert (first, second) == (Wait(begin.ticket), Wait(beside.ticket))


def test_messages_are_written_down_with_the_way_they_take() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2, 3), node=1, index=1)  # the world's worker 3
    message = torch.zeros(5)
    workers.world.send(message, 2).wait()
    swap = [workers.world.send(message, 6), workers.world.receive(message, 6)]
    for pending in swap:
        pending.wait()
    workers.world.receive(message, 6).wait()
    workers.node.receive(message, 0).wait()
    workers.across.send(message, 0).wait()
    found = [event for event in journal.take() if isinstance(event, Transfer)]
    assert found == [
        Transfer(1, "world", True, False, -1, 20),
        Transfer(2, "world", True, True, 1, 20),
        Transfer(3, "world", False, True, 1, 20, is_behind=True),
        Transfer(4, "world", False, True, 1, 20),
        Transfer(5, "node", False, False, -1, 20),
        Transfer(6, "across", True, True, 0, 20),
    ]
    assert (workers.world.bytes_handed, workers.across.bytes_handed) == (40, 20)


@pytest.mark.parametrize("peer", [-1, 3, 4])
def test_nobody_sends_to_itself_or_to_nobody(peer: int) -> None:
    workers = virtual_workers(Journal(), (2, 2), node=1, index=1)
    with pytest.raises(ValueError, match=rf"^Worker 3 of a team of 4 has no worker {peer} to"):
        workers.world.send(torch.zeros(1), peer)
