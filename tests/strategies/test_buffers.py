"""What becomes of batch norm's statistics and other buffers at exchanges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from jobs import DEVICE, run_job
from paceline.strategies import Daso
from paceline.strategies.replica import BufferMode
from paceline.teams import Workers
from paceline.train import attach


class Counting(nn.Module):
    """Has a buffer of each kind; one of them it replaces in every forward pass."""

    running: torch.Tensor
    replaced: torch.Tensor
    count: torch.Tensor
    flag: torch.Tensor
    narrow: torch.Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.rank = rank
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros((), dtype=torch.float64))
        self.register_buffer("narrow", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))

    def forward(self) -> torch.Tensor:
        self.running += self.rank + 1.0
        self.replaced = self.replaced + 10.0 * (self.rank + 1)
        self.narrow.fill_(float(self.rank))
        self.count += self.rank
        self.flag.fill_(self.rank % 2 == 1)
        return self.weight.sum()


def count_steps(
    workers: Workers, strategy: str, mode: BufferMode, num_steps: int, options: dict[str, Any]
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """(running, replaced) after each step, and all buffers after the end."""
    model = Counting(workers.world.rank).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with attach(model, optimizer, strategy, workers=workers, buffers=mode, **options):
        for _ in range(num_steps):
            optimizer.zero_grad()
            torch.autograd.backward(model())
            optimizer.step()
            seen.append((model.running[0].item(), model.replaced.item()))
    return seen, {name: buffer.tolist() for name, buffer in model.named_buffers()}


def test_sync_averages_buffers_at_every_step() -> None:
    # Workers add 1 to 4: 2.5 on average.
    for seen, end in run_job(count_steps, "sync", "mean", 3, {}, nodes=(2, 2)):
        assert seen == [(2.5, 25.0), (5.0, 50.0), (7.5, 75.0)]
        assert end == {
            "running": [7.5, 7.5],
            "replaced": 75.0,
            "narrow": [1.5] * 3,
            "count": 0,  # the first worker's: an average of counters would be none
            "flag": [False, False],
        }


def test_broadcast_takes_the_first_workers_buffers() -> None:
    for seen, end in run_job(count_steps, "sync", "broadcast", 2, {}, nodes=(2, 1)):
        assert seen == [(1.0, 10.0), (2.0, 20.0)]
        assert end["narrow"] == [0.0] * 3


def test_kept_buffers_are_each_workers_own() -> None:
    options = {"period": 1}
    for rank, (seen, end) in enumerate(
        run_job(count_steps, "local-sgd", "keep", 3, options, nodes=(2, 1))
    ):
        assert seen == [(step * (rank + 1.0), step * 10.0 * (rank + 1)) for step in (1, 2, 3)]
        assert end["count"] == 3 * rank
        assert end["flag"] == [rank % 2 == 1] * 2


def test_exchanges_average_the_representatives_in_turn() -> None:
    # Two nodes of two: the first exchange is between workers 0 and 2, the second between 1 and 3.
    results = run_job(count_steps, "local-sgd", "mean", 4, {"period": 2}, nodes=(2, 2))
    first = (2 * 1 + 2 * 3) / 2
    second = (first + 2 * 2 + first + 2 * 4) / 2
    for rank, (seen, end) in enumerate(results):
        running = [value for value, _ in seen]
        assert running == [rank + 1, first, first + rank + 1, second]
        # Nothing came after the last exchange, and the average of equals is the same.
        assert end["running"] == [second] * 2


def test_exchanges_that_broadcast_take_one_node() -> None:
    results = run_job(count_steps, "local-sgd", "broadcast", 2, {"period": 1}, nodes=(2, 2))
    for seen, _ in results:
        # The first node's representative: worker 0, then worker 1.
        assert seen == [(1.0, 10.0), (1.0 + 2.0, 10.0 + 20.0)]


def test_a_late_exchange_keeps_what_was_learnt_meanwhile() -> None:
    options = {"period": 3, "delay": 2, "warmup_steps": 0, "late": "wait"}
    results = run_job(count_steps, "daso", "mean", 5, options, nodes=(1, 1))
    for rank, (seen, end) in enumerate(results):
        mean_sent = (3 * 1 + 3 * 2) / 2
        assert seen[-1] == (mean_sent + 2 * (rank + 1), 10 * (mean_sent + 2 * (rank + 1)))
        assert end["running"] == [mean_sent + 2 * 1.5] * 2


class Spiking(nn.Module):
    """A running variance that one batch of one worker blows up, and that forgets quickly."""

    variance: torch.Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.rank = rank
        self.register_buffer("variance", torch.ones(1))

    def forward(self, step: int) -> torch.Tensor:
        of_batch = 1000.0 if self.rank == 0 and step == 4 else 1.0
        self.variance.lerp_(torch.full_like(self.variance, of_batch), 0.5)
        return self.weight.sum()


def spike(workers: Workers) -> list[float]:
    model = Spiking(workers.world.rank).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    strategy = Daso(period=4, delay=4, warmup_steps=0, late="wait")
    with attach(model, optimizer, strategy, workers=workers):
        for step in range(1, 15):
            optimizer.zero_grad()
            torch.autograd.backward(model(step))
            optimizer.step()
            seen.append(model.variance.item())
    return seen


def test_a_variance_stays_positive() -> None:
    for seen in run_job(spike, nodes=(1, 1)):
        assert min(seen) > 0.0


@pytest.mark.parametrize("nodes", [(2,), (2, 2)])
def test_a_run_of_known_length_ends_with_equal_buffers(nodes: tuple[int, ...]) -> None:
    results = run_job(count_until_total, nodes=nodes)
    assert all(result == results[0] for result in results)


def count_until_total(workers: Workers) -> dict[str, Any]:
    """Counters too, and without an end that anybody calls."""
    model = Counting(workers.world.rank).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = attach(model, optimizer, "daso", workers=workers, total_steps=7)
    for _ in range(7):
        optimizer.zero_grad()
        torch.autograd.backward(model())
        optimizer.step()
    buffers = {name: buffer.tolist() for name, buffer in model.named_buffers()}
    pace.detach()
    return buffers
