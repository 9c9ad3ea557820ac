"""The strategies' own code in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from jobs import run_job
from paceline.cluster import load_cluster
from paceline.cluster.devices import load_device
from paceline.kernels.model import KernelModel
from paceline.rehearse.rehearsal import Rehearsal, rehearse
from paceline.steps import Step, capture_step, zoo_step
from paceline.strategies import Strategy, register_strategy
from paceline.strategies.registry import _STRATEGIES
from paceline.teams import Workers
from paceline.teams.virtual import Begin, Beside


def begun(rehearsal: Rehearsal, worker: int, step: int) -> list[Begin]:
    """The collectives of a step, those of the background too."""
    found: list[Begin] = []
    for event in rehearsal.recordings(rehearsal.node_sizes[0])[worker].steps[step]:
        events = event.events if isinstance(event, Beside) else (event,)
        found += [each for each in events if isinstance(each, Begin)]
    return found


def test_sync_reduces_every_gradient_once_a_step() -> None:
    step = zoo_step("small-cnn", batch=8)
    rehearsal = rehearse(step, "sync", node_sizes=(2, 2))
    parameters = sum(p.numel() for p in step.model.parameters())
    num_tensors = len(list(step.model.parameters()))
    statistics = sum(b.numel() for b in step.model.buffers() if b.is_floating_point())
    for number in (0, 3, 7):
        reduced = [each for each in begun(rehearsal, 0, number) if each.num_bytes > 4096]
        assert all((each.team, each.kind) == ("world", "all_reduce") for each in reduced)
        # Behind the gradients each bucket has one number a parameter; batch norm's statistics
        # are averaged too.
        wanted = 4 * (parameters + num_tensors + statistics)
        assert sum(each.num_bytes for each in reduced) == wanted


def test_daso_takes_turns_across_and_in_the_background() -> None:
    step = zoo_step("small-cnn", batch=8)
    rehearsal = rehearse(step, "daso", node_sizes=(2,) * 4, warmup_steps=0, period=2, delay=1)
    talkers = []
    for number in range(len(rehearsal.first.steps)):
        across = [
            worker
            for worker in range(2)
            if any(each.team == "across" for each in begun(rehearsal, worker, number))
        ]
        talkers += across
    assert talkers[:6] == [0, 1, 0, 1, 0, 1]


def test_a_slow_link_hurts_sync_and_not_daso() -> None:
    step = zoo_step("small-cnn", batch=64)
    slow = load_cluster("local").with_link(100e6 / 8).with_workers(2).with_nodes(2)
    model = KernelModel(load_device("cpu-core"))
    times = {
        name: rehearse(step, name, node_sizes=(2, 2)).time(slow, model).step_s
        for name in ("sync", "daso")
    }
    assert times["sync"] > 2 * times["daso"]


class EveryThird(Strategy):
    """Averages parameters over all workers in every third step."""

    summary = "a strategy that nothing in paceline knows"

    def after_step(self) -> None:
        super().after_step()
        if self.step % 3 == 0:
            for parameter in self.replica.parameters:
                self.wait(self.workers.world.all_reduce(parameter.data, "mean"))


def train_every_third(workers: Workers) -> list[torch.Tensor]:
    from paceline.train import attach

    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, EveryThird(), workers=workers)
    torch.manual_seed(workers.world.rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.fixture
def every_third() -> Iterator[str]:
    register_strategy("every-third")(EveryThird)
    yield "every-third"
    _STRATEGIES.pop("every-third")


def test_a_strategy_of_ones_own_trains_and_is_rehearsed(every_third: str) -> None:
    results: Any = run_job(train_every_third, nodes=(1, 1))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)

    step = Step(
        model=nn.Linear(4, 3),
        inputs=torch.empty(5, 4),
        loss=lambda output, _: output.square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    rehearsal = rehearse(step, every_third, node_sizes=(1, 1))
    talk = [len(begun(rehearsal, 0, number)) for number in range(6)]
    assert talk == [0, 0, 2, 0, 0, 2]
    assert sum(each.num_bytes for each in begun(rehearsal, 0, 2)) == 4 * (12 + 3)


def test_the_users_step_is_untouched() -> None:
    model = nn.Linear(4, 3)
    before = [parameter.clone() for parameter in model.parameters()]
    step = Step(model=model, inputs=torch.empty(5, 4), loss=lambda output, _: output.sum())
    rehearse(step, "daso", node_sizes=(1, 1), capture=capture_step(step))
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert not model._forward_pre_hooks


def test_a_bad_option_is_named() -> None:
    with pytest.raises(ValueError, match="perod"):
        rehearse(zoo_step("mlp", batch=4), "daso", node_sizes=(1, 1), perod=3)
