"""Teams that are looked on do the same as ever, and say what they did."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from jobs import DEVICE, run_job
from paceline.teams import Pending, Workers
from paceline.traces.traced_team import traced_workers

Told = tuple[str, str, int]


@dataclass
class Log:
    """An observer that keeps what it hears, and checks the times."""

    is_on: bool = True
    collectives: list[Told] = field(default_factory=list)
    num_in_background: int = 0
    num_waits: int = 0

    def now(self) -> float:
        return time.perf_counter()

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        assert start_s <= end_s <= self.now()
        self.collectives.append((team, kind, num_bytes))

    def background_work(self, start_s: float, end_s: float) -> None:
        assert start_s <= end_s <= self.now()
        self.num_in_background += 1

    def waited(self, start_s: float, end_s: float) -> None:
        assert start_s <= end_s <= self.now()
        self.num_waits += 1


def numbers(count: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((count,), value, device=DEVICE)


def use_everything(workers: Workers) -> list[Any]:
    """Every operation of the world; what came out of it."""
    world, rank = workers.world, float(workers.world.rank)
    reduced, given = numbers(4, rank + 1), numbers(3, rank + 1)
    share, whole, gathered = numbers(1), numbers(2, rank + 1), numbers(4)
    world.all_reduce(reduced, "mean").wait()
    world.broadcast(given, 1).wait()
    world.reduce_scatter(share, whole).wait()
    world.all_gather(gathered, numbers(2, rank + 1)).wait()
    message = numbers(5, rank + 1)
    (world.send(message, 1) if rank == 0 else world.receive(message, 0)).wait()
    world.barrier()
    tensors = (reduced, given, share, gathered, message)
    return [world.size, world.rank, world.agree(rank, "max"), *(t.tolist() for t in tensors)]


def use_traced(workers: Workers) -> tuple[list[Any], list[Any], list[Told]]:
    plain = use_everything(workers)
    log = Log()
    traced = traced_workers(workers, log)
    results = use_everything(traced)
    told = list(log.collectives)
    log.is_on = False
    use_everything(traced)
    assert log.collectives == told
    assert traced.world.bytes_handed == workers.world.bytes_handed
    assert 1 <= log.num_waits <= len(told)
    return plain, results, told


def test_every_operation_is_told_and_does_the_same() -> None:
    for rank, (plain, results, told) in enumerate(run_job(use_traced, nodes=(1, 1))):
        assert results == plain
        assert told == [
            ("world", "all_reduce", 16),
            ("world", "broadcast", 12),
            ("world", "reduce_scatter", 8),
            ("world", "all_gather", 16),
            ("world", "receive" if rank else "send", 20),
            ("world", "barrier", 8),
            ("world", "all_reduce", 8),
        ]


def wait_for(log: Log, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(log.collectives) < count and time.monotonic() < deadline:
        time.sleep(0.001)


def end_unnoticed(workers: Workers) -> list[Told]:
    """The end is told when it comes, though nobody waits; waiting tells it no second time."""
    log = Log()
    node = traced_workers(workers, log).node
    pending = node.all_reduce(torch.ones(1000))
    wait_for(log, 1)
    before = list(log.collectives)
    pending.wait()
    pending.wait()
    assert pending.done()
    assert log.collectives == before
    return before


def test_the_end_is_told_though_nobody_waits() -> None:
    assert run_job(end_unnoticed, nodes=(2,)) == [[("node", "all_reduce", 4000)]] * 2


def work_in_background(workers: Workers) -> tuple[list[Told], int, int]:
    """What was asked for while somebody looked on is told, though it runs later."""
    log = Log()
    background = traced_workers(workers, log).background
    asked = threading.Event()

    def exchange() -> None:
        asked.wait()
        background.across.all_reduce(numbers(2)).wait()
        background.node.broadcast(numbers(3), 0).wait()

    pendings: list[Pending] = [background.run(exchange, device=DEVICE)]
    log.is_on = False
    pendings.append(background.run(exchange, device=DEVICE))
    asked.set()
    for pending in pendings:
        pending.wait()
    background.close()
    return log.collectives, log.num_in_background, log.num_waits


def test_background_work_is_told_if_it_was_asked_for_in_time() -> None:
    told = [("across", "all_reduce", 8), ("node", "broadcast", 12)]
    assert run_job(work_in_background, nodes=(2, 2)) == [(told, 1, 0)] * 4


def fail(workers: Workers) -> tuple[int, int]:
    log = Log()
    background = traced_workers(workers, log).background

    def broken() -> None:
        raise KeyError("in the background")

    with pytest.raises(KeyError, match="in the background"):
        background.run(broken, device=DEVICE).wait()
    background.run(lambda: None, device=DEVICE).wait()
    return log.num_in_background, len(log.collectives)


def test_errors_in_the_background_still_arrive() -> None:
    assert run_job(fail, nodes=(1,)) == [(2, 0)]
