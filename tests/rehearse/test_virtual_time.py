"""Strategies that read the clock: they train, and what they do with the time is predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from jobs import run_job
from paceline.cluster import Cluster, Link, load_cluster
from paceline.kernels.library import load_kernel_model
from paceline.rehearse import Rehearsal
from paceline.rehearse.compute import compute_cost
from paceline.steps import Step, zoo_step
from paceline.strategies import Phase, Schedule, Strategy
from paceline.teams import Workers
from paceline.teams.journal import BackgroundWork, Collective, Journal
from paceline.teams.virtual_clock import VirtualClock

CPU = load_kernel_model("cpu-core")


class Adaptive(Strategy):
    """Averages so rarely that exchanges take a fifth of the time at most."""

    def __init__(self, *, shares: int = 4) -> None:
        super().__init__()
        self.shares = shares
        self.period = 1
        self.periods: list[int] = []

    def schedule(self) -> Schedule:
        return Schedule(phases=(Phase("all", period=8),))

    def start(self, replica: Any, workers: Workers) -> None:
        super().start(replica, workers)
        self._last_s = workers.clock()

    def after_step(self) -> None:
        super().after_step()
        self.periods.append(self.period)
        now_s = self.workers.clock()
        step_s, self._last_s = now_s - self._last_s, now_s
        if self.step % self.period:
            return
        for parameter in self.replica.parameters:
            self.wait(self.workers.world.all_reduce(parameter.data, "mean"))
        took_s = self.workers.world.agree(self.workers.clock() - now_s, "max")
        step_s = self.workers.world.agree(step_s, "max")
        self.period = 8 if took_s > self.shares * step_s else 2
        self._last_s = self.workers.clock()


def train_adaptively(workers: Workers) -> tuple[list[int], torch.Tensor]:
    from paceline.train import attach

    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = Adaptive()
    attach(model, optimizer, strategy, workers=workers)
    torch.manual_seed(workers.world.rank)
    exchanged = torch.empty(0)
    for number in range(17):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        if number == 0:
            exchanged = model.weight.detach().clone()
    return strategy.periods, exchanged


def small_step() -> Step:
    return Step(
        model=nn.Linear(400, 300, bias=False),
        inputs=torch.empty(2, 400),
        loss=lambda output, _: output.square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def cluster(link_bytes_per_s: float, *slowdowns: float, size: int = 1) -> Cluster:
    base = load_cluster("lab-2x2").node_kinds[0]
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=link_bytes_per_s)
    free = Link(latency_s=0.0, bandwidth_bytes_per_s=1e15)
    nodes = tuple(
        base.replace(
            name=f"n{place}", count=1, workers=size, inside=free, between=link, jitter=0.0,
            slowdown=slowdown,
        )
        for place, slowdown in enumerate(slowdowns or (1.0, 1.0))
    )  # fmt: skip
    return Cluster(name="given", node_kinds=nodes)


def exchanges(rehearsal: Rehearsal, where: Cluster) -> list[int]:
    """The steps with an exchange of parameters."""
    recording = rehearsal.time(where, CPU).recording
    steps = recording.workers[recording.node_sizes[0]][0].steps
    return [
        number
        for number, events in enumerate(steps, start=1)
        if any(isinstance(event, Collective) and event.num_bytes > 8 for event in events)
    ]


def test_a_strategy_that_measures_its_exchanges_trains() -> None:
    results: Any = run_job(train_adaptively, nodes=(1, 1))
    (first, one), (second, other) = results
    assert first == second
    assert first[0] == 1
    assert set(first[1:]) <= {2, 8}
    assert torch.equal(one, other)


def test_what_a_strategy_adapts_to_the_time_changes_with_the_link() -> None:
    rehearsal = Rehearsal(small_step(), Adaptive(), node_sizes=(1, 1))
    assert exchanges(rehearsal, cluster(1e12))[:4] == [1, 2, 4, 6]
    assert exchanges(rehearsal, cluster(1e6))[:3] == [1, 8, 16]


def test_what_a_team_agrees_on_is_what_its_members_say() -> None:
    """The second node's steps are so slow that the exchange is short for all."""
    rehearsal = Rehearsal(small_step(), Adaptive(), node_sizes=(1, 2))
    nodes = cluster(1e6, 1.0, 1e4).node_kinds
    unequal = Cluster(name="unequal", node_kinds=(nodes[0], nodes[1].replace(workers=2)))
    assert exchanges(rehearsal, unequal)[:3] == [1, 2, 4]


def test_an_exchange_that_keeps_a_rate_takes_as_long_as_that() -> None:
    """So slow a rate that sending hardly counts, and one that the link is slower than."""
    step = zoo_step("small-cnn", batch=64)
    rehearsal = Rehearsal(step, "local-sgd", node_sizes=(1, 1), period=8)
    alone_s = compute_cost(rehearsal.capture, CPU).timeline.step_s
    recorded = rehearsal.record().workers[1][0].steps[7]
    (work,) = [event for event in recorded if isinstance(event, BackgroundWork)]
    num_bytes = sum(each.num_bytes for each in work.events if isinstance(each, Collective))
    link = num_bytes / (4 * alone_s)  # a ring of two moves each byte once

    def step_s(**options: Any) -> float:
        paced = Rehearsal(step, "local-sgd", node_sizes=(1, 1), period=8, **options)
        return float(paced.time(cluster(link), CPU).step_s)

    free_s = step_s()
    assert free_s == pytest.approx(alone_s * (1 + 4 / 8), rel=0.05)
    # Half the link's rate: as long as the bytes take at that rate, sending included.
    assert step_s(rate_bytes_per_s=link / 2) == pytest.approx(alone_s * (1 + 8 / 8), rel=0.05)
    assert step_s(rate_bytes_per_s=link * 10) == pytest.approx(free_s, rel=1e-3)


@pytest.mark.parametrize("name", ["sync", "daso", "local-sgd", "streaming-diloco"])
def test_who_only_adds_up_waiting_is_recorded_once(name: str) -> None:
    rehearsal = Rehearsal(zoo_step("mlp", batch=4), name, node_sizes=(2, 2))
    assert not rehearsal.record().is_time_used


def test_sums_of_times_are_no_use_of_them_and_comparisons_are() -> None:
    journal = Journal()
    clock = VirtualClock(journal)
    total = 0.0
    for _ in range(3):
        start = clock()
        total += clock() - start
    assert not journal.is_time_used
    assert total < 0.5
    assert journal.is_time_used


@pytest.mark.parametrize("use", [float, round, bool, lambda time: 8 / time, lambda t: max(0.0, t)])
def test_every_use_of_a_time_is_noticed(use: Any) -> None:
    journal = Journal()
    clock = VirtualClock(journal)
    use(clock() - clock())
    assert journal.is_time_used
