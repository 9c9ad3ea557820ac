"""Steps that a GradScaler, or the user, skips on one node: the nodes must not lose count."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import reference
import reference_delayed
import workloads
from jobs import DEVICE, make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import Pace, attach

NUM_STEPS = 13


class TwoValues(nn.Module):
    """Moves by its slope at each step of SGD with a learning rate of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2))
        self.second = nn.Parameter(torch.zeros(3))

    def forward(self, slope: float) -> torch.Tensor:
        return -slope * (self.first.sum() + self.second.sum())


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = TwoValues().to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


# Steps that the nodes skip: one alone, two in a row, the last one, all together.
SKIPPED: dict[int, set[int]] = {0: {2, 13}, 1: {2, 6, 7, 11}}


def slope(rank: int) -> float:
    return 1.0 + rank


Loop = Callable[[Workers, nn.Module, torch.optim.Optimizer, Pace, "GradScaler"], None]
GradScaler = torch.amp.GradScaler


def steps(workers: Workers) -> list[tuple[int, float]]:
    """Each step and the factor of its loss, which is infinite where this node skips."""
    skipped = SKIPPED[workers.node_index]
    return [(step, float("inf") if step in skipped else 1.0) for step in range(1, NUM_STEPS + 1)]


def usual(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    for step, factor in steps(workers):
        optimizer.zero_grad()
        loss = model(slope(workers.world.rank)) * factor
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        if step % 2:
            # All workers meet here: a node that waits in an exchange would wait for ever.
            pace.report(0.5**step)


def zeroed_in_place(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    for _, factor in steps(workers):
        optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(scaler.scale(model(slope(workers.world.rank)) * factor))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimizer)
        scaler.update()


def zeroed_after_forward(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    for _, factor in steps(workers):
        loss = model(slope(workers.world.rank)) * factor
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()


def accumulated(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    for _, factor in steps(workers):
        optimizer.zero_grad()
        with pace.accumulate():
            torch.autograd.backward(scaler.scale(model(slope(workers.world.rank)) / 2))
        torch.autograd.backward(scaler.scale(model(slope(workers.world.rank)) / 2 * factor))
        scaler.step(optimizer)
        scaler.update()


def skipped_by_hand(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    """A user who does not trust large gradients, and says so: they are finite."""
    for _, factor in steps(workers):
        optimizer.zero_grad()
        is_large = factor > 1.0
        torch.autograd.backward(model(slope(workers.world.rank)) * (1e6 if is_large else 1.0))
        if is_large:
            pace.skip_step()
        else:
            optimizer.step()


def skipped_if_not_finite(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    """A user who looks at the gradients, and tells nobody."""
    for _, factor in steps(workers):
        optimizer.zero_grad()
        torch.autograd.backward(model(slope(workers.world.rank)) * factor)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        if norm.isfinite():
            optimizer.step()


def accumulated_in_place(
    workers: Workers,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    scaler: GradScaler,
) -> None:
    """Gradients keep their memory, so nothing of a skipped step's is left to see."""
    for _, factor in steps(workers):
        optimizer.zero_grad(set_to_none=False)
        with pace.accumulate():
            torch.autograd.backward(scaler.scale(model(slope(workers.world.rank)) / 2))
        torch.autograd.backward(scaler.scale(model(slope(workers.world.rank)) / 2 * factor))
        scaler.step(optimizer)
        scaler.update()


LOOPS: dict[str, Loop] = {
    "usual": usual,
    "zeroed in place": zeroed_in_place,
    "zeroed after forward": zeroed_after_forward,
    "accumulated": accumulated,
    "accumulated in place": accumulated_in_place,
    "skipped by hand": skipped_by_hand,
    "skipped if not finite": skipped_if_not_finite,
}
STRATEGIES: dict[str, tuple[str, dict[str, Any], type[reference.Rule]]] = {
    "blocking": ("local-sgd", {"period": 1}, reference.LocalSgd),
    "local-sgd": ("local-sgd", {"period": 3}, reference.LocalSgd),
    "daso": (
        "daso",
        {"period": 3, "delay": 2, "merge": "corrected", "warmup_steps": 2},
        reference_delayed.Daso,
    ),
    "daso-known": (
        "daso",
        {"period": 3, "delay": 1, "merge": "stale", "total_steps": NUM_STEPS},
        reference_delayed.Daso,
    ),
}
CASES = list(itertools.product(LOOPS, STRATEGIES))


def train_all(workers: Workers, compile_model: bool) -> list[tuple[torch.Tensor, int]]:
    """The end of every case, and the steps counted."""
    results = []
    for loop, name in CASES:
        strategy, options, _ = STRATEGIES[name]
        if strategy == "daso":
            options = options | {"late": "wait"}
        model, optimizer = build()
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**10, growth_interval=4)
        with attach(model, optimizer, strategy, workers=workers, **options) as pace:
            network = torch.compile(model, backend="eager") if compile_model else model
            assert isinstance(network, nn.Module)
            LOOPS[loop](workers, network, optimizer, pace, scaler)
        results.append((workloads.flat_state(model), pace.strategy.step))
    return results


@pytest.fixture(scope="module")
def ends() -> list[list[tuple[torch.Tensor, int]]]:
    return run_job(train_all, False, nodes=(2, 1))


def skipping_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    # Without momentum, a step on a gradient of zero is a step skipped.
    is_skipped = step in SKIPPED[0 if rank < 2 else 1]
    loss: torch.Tensor = model(0.0 if is_skipped else slope(rank))
    return loss


@pytest.mark.parametrize(("loop", "name"), CASES)
def test_nodes_keep_count_and_step_alike(
    ends: list[list[tuple[torch.Tensor, int]]], loop: str, name: str
) -> None:
    make_reproducible()
    _, options, rule = STRATEGIES[name]
    expected = reference.play(
        rule(reference.Game((2, 1), build), **options),
        skipping_loss,
        NUM_STEPS,
        observe=workloads.flat_state,
        reports={},
    )[-1]
    for rank, by_case in enumerate(ends):
        end, num_steps = by_case[CASES.index((loop, name))]
        assert num_steps == NUM_STEPS
        torch.testing.assert_close(end, expected[rank], rtol=1e-6, atol=1e-6)


def test_compiled_models_keep_count_too() -> None:
    for by_case in run_job(train_all, True, nodes=(2, 1)):
        assert [num_steps for _, num_steps in by_case] == [NUM_STEPS] * len(CASES)
