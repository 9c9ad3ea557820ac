"""Workers with unequal numbers of batches."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import workloads
from jobs import make_reproducible, run_job
from paceline.strategies import strategy_names
from paceline.teams import Workers
from paceline.train import Pace, attach

EPOCHS = 2


def train_epochs(
    workers: Workers, strategy: str, options: dict[str, Any], num_batches: Sequence[int], kind: str
) -> tuple[torch.Tensor, list[torch.Tensor], int, list[str]]:
    """The end, what the optimizer keeps, the steps counted, and what was warned of."""
    model, optimizer = workloads.build(kind, "adamw")
    own = num_batches[workers.world.rank]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizer, strategy, workers=workers, **options) as pace:
            for epoch in range(EPOCHS):
                with pace.join():
                    for step in range(own):
                        optimizer.zero_grad()
                        loss = workloads.batch_loss(model, 100 * epoch + step, workers.world.rank)
                        torch.autograd.backward(loss)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                        optimizer.step()
                        if step % 2:
                            pace.report(float(workers.world.rank))
                pace.report(1.0)
    kept = [state["exp_avg"].clone() for state in optimizer.state.values()]
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    return workloads.flat_state(model), kept, pace.strategy.step, said


def test_sync_averages_over_the_workers_that_have_data() -> None:
    num_batches = (2, 5, 3)
    results = run_job(train_epochs, "sync", {}, num_batches, "plain", nodes=(2, 1))
    make_reproducible()
    model, optimizer = workloads.build("plain", "adamw")
    for epoch in range(EPOCHS):
        for step in range(max(num_batches)):
            optimizer.zero_grad()
            losses = [
                workloads.batch_loss(model, 100 * epoch + step, rank)
                for rank, count in enumerate(num_batches)
                if step < count
            ]
            torch.autograd.backward(torch.stack(losses).mean())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    for end, kept, count, said in results:
        torch.testing.assert_close(end, workloads.flat_state(model), rtol=1e-5, atol=1e-6)
        assert torch.equal(end, results[0][0])
        assert all(torch.equal(a, b) for a, b in zip(kept, results[0][1], strict=True))
        assert count == EPOCHS * max(num_batches)
        assert said == []


CASES: list[tuple[str, dict[str, Any]]] = [
    ("sync", {}),
    ("sync-hierarchical", {}),
    ("local-sgd", {"period": 2}),
    ("post-local-sgd", {"period": 2, "sync_steps": 3}),
    ("diloco", {"period": 3, "wire": "int8"}),
    ("streaming-diloco", {"period": 4, "fragments": 2, "delay": 1}),
    ("daso", {"warmup_steps": 1, "period": 3, "patience": 0}),
    ("slowmo", {"period": 2}),
    ("co2", {"period": 2}),
    ("gossip", {"period": 2}),
    ("demo", {}),
    ("auto", {"allow": "local-sgd", "max_period": 4, "wires": "fp32"}),
]


def train_all(
    workers: Workers, num_batches: Sequence[int]
) -> list[tuple[torch.Tensor, list[torch.Tensor], int, list[str]]]:
    return [train_epochs(workers, *case, num_batches, "normed") for case in CASES]


@pytest.mark.parametrize(
    ("nodes", "num_batches"),
    [
        ((2, 2), (3, 5, 5, 4)),
        ((2, 1), (0, 2, 7)),  # a worker that has nothing, a node that ends early
        ((2, 2), (6, 6, 1, 2)),
    ],
)
def test_every_strategy_ends_equal(nodes: tuple[int, ...], num_batches: tuple[int, ...]) -> None:
    results = run_job(train_all, num_batches, nodes=nodes)
    for case, (name, _) in enumerate(CASES):
        for rank, by_case in enumerate(results):
            end, kept, count, said = by_case[case]
            assert torch.equal(end, results[0][case][0]), name
            assert end.isfinite().all(), name
            assert count == EPOCHS * max(num_batches), name
            # Inside a node, optimizers too go on alike.
            first = 0 if rank < nodes[0] else nodes[0]
            peers = results[first][case][1]
            assert all(torch.equal(a, b) for a, b in zip(kept, peers, strict=True)), name
            assert said == [], name


def test_every_strategy_is_tried() -> None:
    assert {name for name, _ in CASES} == set(strategy_names())


def misuse(workers: Workers, folder: str) -> list[str]:
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, "sync", workers=workers)

    def refusal(call: Any) -> str:
        with pytest.raises(ValueError) as problem:
            call()
        return str(problem.value)

    def nest(pace: Pace) -> None:
        with pace.join():
            pass

    said = []
    with pace.join():
        said += [refusal(pace.finish), refusal(lambda: pace.save(folder))]
        said.append(refusal(lambda: nest(pace)))
    return said


def test_what_cannot_be_done_inside_join(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("join"))
    for finish, save, nested in run_job(misuse, folder, nodes=(2,)):
        assert "finish() is not possible inside join()" in finish
        assert "save() is not possible inside join()" in save
        assert "inside join()" in nested


def different_loops(workers: Workers) -> str:
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, "sync", workers=workers)
    with pytest.raises(RuntimeError) as problem, pace.join():
        if workers.world.rank == 0:
            pace.report(1.0)
        torch.autograd.backward(workloads.batch_loss(model, 0, 0))
    return str(problem.value)


def test_workers_that_run_different_loops_are_named() -> None:
    for text in run_job(different_loops, nodes=(2,)):
        assert "worker 1 averages gradients while worker 0 reports a metric" in text


def schedule_by_batch(workers: Workers) -> tuple[float, list[str]]:
    model, optimizer = workloads.build("plain", "momentum")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    pace = attach(model, optimizer, "sync", workers=workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pace.join():
            for step in range(1 + 2 * workers.world.rank):
                optimizer.zero_grad()
                torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
                optimizer.step()
                scheduler.step()
    return optimizer.param_groups[0]["lr"], [str(each.message) for each in caught]


def test_learning_rates_that_fell_behind_are_taken_over_and_named() -> None:
    for rate, said in run_job(schedule_by_batch, nodes=(2,)):
        assert rate == pytest.approx(0.05 * 0.5**3)
        assert len(said) == 1 and "scheduler that is stepped once per batch" in said[0]


def drift_apart(workers: Workers) -> list[float]:
    """Each worker pulls at its own slope; the first one has run out when it carries an exchange."""
    model, optimizer = workloads.build_drift()
    values = []
    with attach(model, optimizer, "local-sgd", workers=workers, period=2) as pace:
        with pace.join():
            for _ in range((1, 3, 3)[workers.world.rank]):
                optimizer.zero_grad()
                torch.autograd.backward(model(1.0 + workers.world.rank))
                optimizer.step()
                values.append(model.values.item())
        values.append(model.values.item())
    return [*values, model.values.item()]


def test_who_stands_by_carries_its_nodes_parameters() -> None:
    first, second, third = run_job(drift_apart, nodes=(2, 1))
    # The first node: the mean of 1 and 2, then 2 alone. After two steps 3.5 and 6 are averaged; the
    # first node has trained on three batches and the second on two. Then both train on one.
    mean = (3 * 3.5 + 2 * 6.0) / 5
    end = (mean + 2 + mean + 3) / 2
    assert second == pytest.approx([1.5, mean, mean + 2, mean + 2, end])
    assert third == pytest.approx([3.0, mean, mean + 3, mean + 3, end])
    assert first == pytest.approx([1.5, mean + 2, end])


WEIGHED = {"first": (0, 4, 3), "later": (2, 4, 1)}
"""Batches of each worker: one has none from the beginning, or runs out later."""


def train_weighed(workers: Workers, num_batches: Sequence[int]) -> tuple[torch.Tensor, float]:
    """Batches of unequal sizes, weighed by hand; the end, and the last metric."""
    model, optimizer = workloads.build("plain", "sgd")
    rank = workers.world.rank
    reported: list[float] = []
    with attach(model, optimizer, "sync", workers=workers) as pace:
        vars(pace.strategy)["report"] = reported.append
        with pace.join():
            for step in range(num_batches[rank]):
                pace.weigh(1 + rank)
                optimizer.zero_grad()
                torch.autograd.backward(workloads.batch_loss(model, step, rank))
                optimizer.step()
                pace.report(10.0**rank)
    return workloads.flat_state(model), reported[0]


@pytest.mark.parametrize("kind", WEIGHED)
def test_weighed_batches_of_workers_of_which_one_has_none(kind: str) -> None:
    num_batches = WEIGHED[kind]
    results = run_job(train_weighed, num_batches, nodes=(2, 1))
    make_reproducible()
    model, optimizer = workloads.build("plain", "sgd")
    for step in range(max(num_batches)):
        ranks = [rank for rank, count in enumerate(num_batches) if step < count]
        losses = [(1 + rank) * workloads.batch_loss(model, step, rank) for rank in ranks]
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).sum() / sum(1 + rank for rank in ranks))
        optimizer.step()
    first = [rank for rank, count in enumerate(num_batches) if count]
    metric = sum((1 + rank) * 10.0**rank for rank in first) / sum(1 + rank for rank in first)
    for end, reported in results:
        torch.testing.assert_close(end, workloads.flat_state(model), rtol=1e-5, atol=1e-6)
        assert reported == pytest.approx(metric)
