"""Strategies where workers' batches are unequal: averages, closures, workers without a share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from jobs import make_reproducible, run_job
from paceline.strategies import Strategy
from paceline.teams import Workers
from paceline.train import attach
from unequal import (
    EPOCHS,
    Texts,
    average,
    build,
    collate,
    flat,
    loss_of,
    whole_batches_of,
)

SIZE = 8
NODES = ((0, 1), (2,))


def train(
    workers: Workers, strategy: str, options: dict[str, Any], shares: Sequence[float]
) -> torch.Tensor:
    model, optimizer = build()
    with attach(model, optimizer, strategy, workers=workers, **options) as pace:
        loader = pace.loader(Texts(), SIZE, collate_fn=collate, shares=shares)
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                torch.autograd.backward(loss_of(model, batch, "samples"))
                optimizer.step()
    return flat(model)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, indices: Sequence[int]) -> None:
    optimizer.zero_grad()
    batch = collate([Texts()[index] for index in indices])
    torch.autograd.backward(loss_of(model, batch, "samples"))
    optimizer.step()


def parts_of_nodes(batch: list[int], shares: Sequence[float]) -> list[list[int]]:
    parts = torch.split(torch.tensor(batch), list(paceline.share_batch(len(batch), shares)))
    return [torch.cat([parts[rank] for rank in ranks]).tolist() for ranks in NODES]


@pytest.mark.parametrize("shares", [[3, 1, 2], [1, 0, 4], [2, 1, 0]])
def test_demo_that_sends_everything_is_one_process(shares: list[float]) -> None:
    """Also where a whole node has no share: what it gets is the others' gradient."""
    options = {"keep": 64, "decay": 0.0}
    results = run_job(train, "demo", options, shares, nodes=(2, 1))
    make_reproducible()
    model, optimizer = build()
    for batch in whole_batches_of(SIZE):
        take_step(model, optimizer, batch)
    for found in results:
        assert torch.equal(found, results[0])
        torch.testing.assert_close(found, flat(model), rtol=1e-7, atol=1e-7)


def test_gossip_averages_by_what_nodes_have_trained_on() -> None:
    shares = [1.0, 1.0, 4.0]
    results = run_job(train, "gossip", {"period": 3}, shares, nodes=(2, 1))
    make_reproducible()
    models, trained = [build() for _ in NODES], [0, 0]
    for step, batch in enumerate(whole_batches_of(SIZE), start=1):
        for node, own in enumerate(parts_of_nodes(batch, shares)):
            take_step(*models[node], own)
            trained[node] += len(own)
        if step % 3 == 0 or step == 14:  # and at the end
            average([model for model, _ in models], trained)
            trained = [0, 0]
    for found in results:
        assert torch.equal(found, results[0])
        torch.testing.assert_close(found, flat(models[0][0]), rtol=1e-9, atol=1e-9)


def test_co2_averages_by_what_nodes_have_trained_on() -> None:
    shares, lr, momentum = [1.0, 1.0, 4.0], 0.7, 0.2
    options = {"period": 3, "outer_lr": lr, "outer_momentum": momentum}
    results = run_job(train, "co2", options, shares, nodes=(2, 1))
    make_reproducible()
    models, trained = [build() for _ in NODES], [0, 0]
    start = before = flat(models[0][0])
    velocity, mean = torch.zeros_like(start), None
    for step, batch in enumerate(whole_batches_of(SIZE), start=1):
        for node, own in enumerate(parts_of_nodes(batch, shares)):
            take_step(*models[node], own)
            trained[node] += len(own)
        if step % 3 == 0:
            sent = [flat(model) for model, _ in models]
            if mean is not None:
                velocity = momentum * velocity + before - mean
            mean = sum(w * x for w, x in zip(trained, sent, strict=True)) / sum(trained)
            before, start = start, start - lr * velocity
            for model, _ in models:
                nn.utils.vector_to_parameters(start.clone(), model.parameters())
            trained = [0, 0]
    average([model for model, _ in models], trained)
    for found in results:
        assert torch.equal(found, results[0])
        torch.testing.assert_close(found, flat(models[0][0]), rtol=1e-9, atol=1e-9)


def search(workers: Workers, shares: Sequence[float]) -> tuple[torch.Tensor, list[float]]:
    """L-BFGS with a closure of the user's own, whose line search decides by the loss."""
    model, _ = build()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    losses: list[float] = []
    with attach(model, optimizer, "sync", workers=workers) as pace:
        loader = pace.loader(Texts(), 16, collate_fn=collate, shares=shares)
        for batch in loader:
            optimizer.step(_closure(model, optimizer, batch, losses))  # type: ignore[no-untyped-call]
    return flat(model), losses


def _closure(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, losses: list[float]
) -> Any:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch, "samples")
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
        return loss

    return closure


@pytest.mark.parametrize("shares", [[5, 1, 2], [0, 1, 3]])
def test_a_closures_loss_is_that_of_the_whole_batch(shares: list[float]) -> None:
    results = run_job(search, shares, nodes=(2, 1))
    make_reproducible()
    model, _ = build()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    losses: list[float] = []
    for batch in whole_batches_of(16)[:4]:
        whole = collate([Texts()[index] for index in batch])
        optimizer.step(_closure(model, optimizer, whole, losses))  # type: ignore[no-untyped-call]
    for found, evaluated in results:
        assert torch.equal(found, results[0][0])
        assert len(evaluated) == len(losses)
        torch.testing.assert_close(found, flat(model), rtol=1e-6, atol=1e-6)


def evaluate_between(workers: Workers) -> torch.Tensor:
    """Two batches per step, and an evaluation on unequal shares before the second one."""
    model, optimizer = build()
    with attach(model, optimizer, "sync", workers=workers) as pace:
        loader = pace.loader(Texts(), SIZE, collate_fn=collate, shares=[3, 1])
        others = pace.loader(Texts(), 5, collate_fn=collate, shares=[1, 3])
        for place, batch in enumerate(loader):
            if place % 2:
                with torch.no_grad():
                    losses = [loss_of(model, each, "samples") for each in others]
                assert len(losses) == 11
                pace.weigh(len(batch[2]))  # the evaluation has ended the weights
                torch.autograd.backward(loss_of(model, batch, "samples") / 2)
                optimizer.step()
                optimizer.zero_grad()
                continue
            pace.weigh(len(batch[2]))  # once more, in another unit than the loader's
            with pace.no_sync():
                torch.autograd.backward(loss_of(model, batch, "samples") / 2)
        optimizer.step()
    return flat(model)


def test_batches_without_a_gradient_have_no_weight() -> None:
    results = run_job(evaluate_between, nodes=(2,))
    make_reproducible()
    model, optimizer = build()
    batches = whole_batches_of(SIZE)[:7]
    for place in range(0, 7, 2):
        optimizer.zero_grad()
        pair = [index for batch in batches[place : place + 2] for index in batch]
        share = len(batches[place : place + 2]) / 2
        loss = loss_of(model, collate([Texts()[index] for index in pair]), "samples")
        torch.autograd.backward(loss * share)
        optimizer.step()
    for found in results:
        torch.testing.assert_close(found, flat(model), rtol=1e-9, atol=1e-9)


def train_and_leave(workers: Workers, strategy: str) -> list[str]:
    """Measured shares, whose last question nobody needs the answer of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = build()
        pace = attach(model, optimizer, strategy, workers=workers)
        for batch in pace.loader(Texts(), 6, collate_fn=collate):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, batch, "samples"))
            optimizer.step()
        pace.finish()
        pace.detach()
        del pace
        gc.collect()
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("strategy", ["daso", "gossip"])
def test_measured_shares_leave_nothing_under_way(strategy: str) -> None:
    assert run_job(train_and_leave, strategy, nodes=(1, 1)) == [[], []]


class OwnGradients(Strategy):
    """Replaces gradients by new tensors, also where a worker has none."""

    def gradients_ready(self) -> None:
        for parameter in self.replica.parameters:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            self.wait(self.workers.world.all_reduce(own, "mean"))
            parameter.grad = own


def replace_gradients(workers: Workers) -> tuple[torch.Tensor, int]:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 1).double() for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_calls = 0
    with attach(model, optimizer, OwnGradients(), workers=workers) as pace:
        before = workers.world.bytes_handed
        for _ in range(3):
            optimizer.zero_grad()
            layer = model[workers.world.rank]  # each worker uses another layer
            torch.autograd.backward(layer(torch.ones(2, 4).double()).mean())
            optimizer.step()
        num_calls = workers.world.bytes_handed - before
        assert pace.strategy.step == 3
    return flat(model), num_calls


def test_gradients_that_a_strategy_sets_are_not_exchanged_again() -> None:
    results = run_job(replace_gradients, nodes=(1, 1))
    assert torch.equal(results[0][0], results[1][0])
    assert [count for _, count in results] == [3 * 10 * 8] * 2


def stand_by_with_demo(workers: Workers) -> torch.Tensor:
    """The worker that carries its node's messages has no batch at all."""
    model, optimizer = build()
    options: dict[str, Any] = {"keep": 64, "decay": 0.0}
    with attach(model, optimizer, "demo", workers=workers, **options) as pace:
        with pace.join():
            for step in range((0, 4, 4)[workers.world.rank]):
                take_step(model, optimizer, [2 * step + workers.world.rank - 1])
        assert all(p.grad is None for p in model.parameters()) == (workers.world.rank == 0)
    return flat(model)


def test_who_stands_by_sends_its_nodes_gradients() -> None:
    results = run_job(stand_by_with_demo, nodes=(2, 1))
    make_reproducible()
    model, optimizer = build()
    for step in range(4):
        # Both nodes have one worker with a batch, and so count alike.
        take_step(model, optimizer, [2 * step, 2 * step + 1])
    for found in results:
        torch.testing.assert_close(found, flat(model), rtol=1e-7, atol=1e-7)
