"""Virtual teams write down what a program would communicate."""

from __future__ import annotations

import torch

from paceline.teams.virtual import Await, Begin, Beside, Journal, Pause, virtual_workers


def test_collectives_are_written_down_with_their_bytes() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2, 2), node=1, index=1)
    pending = workers.world.all_reduce(torch.zeros(10))
    workers.node.broadcast(torch.zeros(3, dtype=torch.float64), 0).wait()
    workers.across.all_gather(torch.zeros(6), torch.zeros(2)).wait()
    pending.wait()
    pending.wait()  # waiting again costs nothing
    assert journal.take() == [
        Begin(1, "world", "all_reduce", 40),
        Begin(2, "node", "broadcast", 24),
        Await(2),
        Begin(3, "across", "all_gather", 24),
        Await(3),
        Await(1),
    ]
    assert journal.take() == []
    assert workers.world.bytes_handed == 40


def test_a_worker_sees_its_own_place() -> None:
    workers = virtual_workers(Journal(), (2, 1, 3), node=2, index=1)
    assert (workers.world.size, workers.world.rank) == (6, 4)
    assert (workers.node.size, workers.node.rank) == (3, 1)
    assert (workers.across.size, workers.across.rank) == (2, 1)
    assert workers.nodes == ((0, 1), (2,), (3, 4, 5))
    assert workers.node_index == 2


def test_agreeing_blocks_and_members_are_alike() -> None:
    journal = Journal()
    workers = virtual_workers(journal, (2, 2), node=0, index=0)
    assert workers.world.agree(3.0, "mean") == 3.0
    assert workers.world.agree(3.0, "sum") == 12.0
    assert [type(event) for event in journal.take()] == [Begin, Await, Begin, Await]


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
    assert isinstance(beside, Beside)
    assert [type(event) for event in beside.events] == [Begin, Await, Pause]
    assert begin == Begin(begin.ticket, "across", "all_reduce", 4)
    assert (first, second) == (Await(begin.ticket), Await(beside.ticket))
