"""Loops that do what no tutorial does: each trains as one process would, or says what is wrong."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import workloads
from jobs import DEVICE, make_reproducible, run_job
from odd_loops import (
    COUNTS,
    LOOPS,
    NUM_STEPS,
    Alternating,
    LossOf,
    OnlyAccumulated,
    TwoOptimizers,
    backward,
)
from paceline.strategies import Strategy
from paceline.teams import Pending, Workers
from paceline.train import attach


def own_loss(rank: int) -> LossOf:
    return lambda model, step: workloads.batch_loss(model, step, rank)


def mean_loss(num_workers: int) -> LossOf:
    """What one process with all workers' data would minimise."""

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        parts = [workloads.batch_loss(model, step, rank) for rank in range(num_workers)]
        return torch.stack(parts).mean()

    return loss


def run_loops(
    workers: Workers, strategy: str, options: dict[str, Any]
) -> dict[str, tuple[torch.Tensor, int, list[str]]]:
    """By loop: the end, the steps counted, and what was warned of."""
    results = {}
    for name, loop in LOOPS.items():
        model = workloads.build_model("plain")
        optimizers = loop.optimizers(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with attach(model, list(optimizers), strategy, workers=workers, **options) as pace:
                if isinstance(loop, OnlyAccumulated):
                    loop.pace = pace
                for step in range(NUM_STEPS):
                    loop.step(model, optimizers, own_loss(workers.world.rank), step)
        said = [str(each.message) for each in caught if each.category is RuntimeWarning]
        results[name] = (workloads.flat_state(model), pace.strategy.step, said)
    return results


@pytest.fixture(scope="module")
def synchronous() -> list[dict[str, tuple[torch.Tensor, int, list[str]]]]:
    return run_job(run_loops, "sync", {}, nodes=(2, 1))


@pytest.fixture(scope="module")
def periodic() -> list[dict[str, tuple[torch.Tensor, int, list[str]]]]:
    return run_job(run_loops, "daso", {"warmup_steps": 2, "period": 3}, nodes=(2, 1))


@pytest.mark.parametrize("name", LOOPS)
def test_sync_trains_as_one_process_with_all_data(
    synchronous: list[dict[str, tuple[torch.Tensor, int, list[str]]]], name: str
) -> None:
    make_reproducible()
    model = workloads.build_model("plain")
    loop = LOOPS[name]
    optimizers = loop.optimizers(model)
    for step in range(NUM_STEPS):
        loop.step(model, optimizers, mean_loss(3), step)
    for by_loop in synchronous:
        end, count, said = by_loop[name]
        torch.testing.assert_close(end, workloads.flat_state(model), rtol=1e-5, atol=1e-6)
        assert torch.equal(end, synchronous[0][name][0])
        assert count == COUNTS.get(name, NUM_STEPS)
        assert said == []


@pytest.mark.parametrize("name", LOOPS)
def test_nodes_exchange_count_and_end_equal(
    periodic: list[dict[str, tuple[torch.Tensor, int, list[str]]]], name: str
) -> None:
    for by_loop in periodic:
        end, count, said = by_loop[name]
        assert torch.equal(end, periodic[0][name][0])
        assert count == COUNTS.get(name, NUM_STEPS)
        assert said == []


def count_lbfgs(workers: Workers) -> tuple[int, torch.Tensor]:
    """Each step of L-BFGS calls its closure many times; the data are the same everywhere."""
    model = workloads.build_model("plain")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=6)
    with attach(model, optimizer, "daso", workers=workers, warmup_steps=1, period=2) as pace:
        for step in range(5):

            def closure(step: int = step) -> float:
                optimizer.zero_grad()
                loss = workloads.batch_loss(model, step, 0)
                backward(loss)
                return float(loss)

            optimizer.step(closure)  # type: ignore[no-untyped-call]
    return pace.strategy.step, workloads.flat_state(model)


def test_a_step_of_lbfgs_counts_once() -> None:
    results = run_job(count_lbfgs, nodes=(2, 1))
    assert [count for count, _ in results] == [5, 5, 5]
    assert all(torch.equal(end, results[0][1]) for _, end in results)


def count_exchanges(workers: Workers) -> tuple[int, int]:
    """A discriminator and a generator, in one module: 20 rounds are 20 steps."""
    model = workloads.build_model("plain")
    optimizers = Alternating().optimizers(model)
    options: dict[str, Any] = {"warmup_steps": 0, "period": 4, "delay": 1, "cooldown_steps": 0}
    options["total_steps"] = 20
    with attach(model, optimizers, "daso", workers=workers, **options) as pace:
        for step in range(20):
            Alternating().step(model, optimizers, own_loss(workers.world.rank), step)
        num_exchanges = pace.strategy.state_dict()["num_exchanges"]
    return pace.strategy.step, num_exchanges


def test_two_optimizers_do_not_exchange_twice_as_often() -> None:
    # At 4, 8, 12, 16, and the last step, which always blocks.
    assert run_job(count_exchanges, nodes=(1, 1)) == [(20, 5)] * 2


class EveryOther(Strategy):
    """The documentation's example: it never makes workers equal."""

    summary = "average every other gradient"

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        return self.workers.world.all_reduce(bucket, "mean") if self.step % 2 else None


def train_own(workers: Workers) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    model, optimizer = workloads.build("normed", "momentum")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizer, EveryOther(), workers=workers):
            for step in range(5):
                optimizer.zero_grad()
                backward(workloads.batch_loss(model, step, workers.world.rank))
                optimizer.step()
            before = workloads.flat_state(model)
    return before, workloads.flat_state(model), [str(each.message) for each in caught]


def test_a_strategy_without_an_end_of_its_own_ends_with_the_average() -> None:
    results = run_job(train_own, nodes=(2, 1))
    mean = torch.stack([before for before, _, _ in results]).mean(dim=0)
    assert not torch.equal(results[0][0], results[1][0])
    for _, end, said in results:
        torch.testing.assert_close(end, mean, rtol=1e-5, atol=1e-6)
        assert torch.equal(end, results[0][1])
        assert said == []


def change_behind_our_back(workers: Workers) -> tuple[list[float], list[str]]:
    """Somebody writes into a parameter on one worker."""
    model, optimizer = workloads.build_drift()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizer, "sync", workers=workers):
            optimizer.zero_grad()
            backward(model(1.0))
            optimizer.step()
            if workers.world.rank == 1:
                model.values.data += 3.0
    return model.values.tolist(), [str(each.message) for each in caught]


def test_workers_that_differ_at_the_end_get_the_average_and_a_warning() -> None:
    for values, said in run_job(change_behind_our_back, nodes=(2, 1)):
        assert values == [2.0]
        assert len(said) == 1 and "workers differed in values at the end" in said[0]


def go_on_with_sync(workers: Workers, average: bool) -> tuple[torch.Tensor, list[str]]:
    """daso, finish, detach, sync: the nodes' momenta differ."""
    model, optimizer = workloads.build("plain", "momentum")

    def train() -> None:
        for step in range(5):
            optimizer.zero_grad()
            backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizer, "daso", workers=workers, warmup_steps=0) as pace:
            train()
            pace.finish(optimizer_state=average)
        with attach(model, optimizer, "sync", workers=workers) as pace:
            train()
            before = workloads.flat_state(model)
    momenta = [state["momentum_buffer"].cpu().flatten() for state in optimizer.state.values()]
    return torch.cat([before, *momenta]), [str(each.message) for each in caught]


@pytest.mark.parametrize("average", [False, True])
def test_optimizers_go_on_alike_under_another_strategy(average: bool) -> None:
    results = run_job(go_on_with_sync, average, nodes=(2, 1))
    for end, said in results:
        assert torch.equal(end, results[0][0])
        expected = [] if average else ["optimizers had different states"]
        assert len(said) == len(expected)
        assert all(part in text for part, text in zip(expected, said, strict=True))


class Twins(nn.Module):
    """Two parameters that are the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3))
        self.second = nn.Parameter(self.first.data)

    def forward(self, slope: float) -> torch.Tensor:
        return -slope * self.first.sum()


def train_twins(workers: Workers) -> float:
    model = Twins().to(DEVICE)
    model.second.data = model.first.data
    optimizer = torch.optim.SGD([model.first], lr=1.0)
    options: dict[str, Any] = {"warmup_steps": 0, "period": 3, "delay": 1, "late": "wait"}
    pace = attach(model, optimizer, "daso", workers=workers, **options)
    for _ in range(4):
        optimizer.zero_grad()
        backward(model(1.0 + workers.world.rank))
        optimizer.step()
    pace.detach()
    return model.first[0].item()


def test_parameters_that_share_memory_are_merged_once() -> None:
    # Sent after three steps: 3 and 6. Merged after one more: the mean, and that step.
    assert run_job(train_twins, nodes=(1, 1)) == [4.5 + 1.0, 4.5 + 2.0]


def train_zero(workers: Workers) -> torch.Tensor:
    """ZeRO-1: each worker keeps the state of some parameters and steps these alone."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = workloads.build_model("plain")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    for part in range(2):
        with attach(model, optimizer, "sync", workers=workers) as pace:
            for step in range(4):
                optimizer.zero_grad()
                backward(workloads.batch_loss(model, 4 * part + step, workers.world.rank))
                optimizer.step()
        assert pace.strategy.step == 4
    return workloads.flat_state(model)


def test_zero_redundancy_optimizers_keep_their_parts() -> None:
    make_reproducible()
    model = workloads.build_model("plain")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(8):
        optimizer.zero_grad()
        backward(mean_loss(3)(model, step))
        optimizer.step()
    for end in run_job(train_zero, nodes=(2, 1)):
        torch.testing.assert_close(end, workloads.flat_state(model), rtol=1e-5, atol=1e-6)


def train_unattached(workers: Workers, strategy: str) -> tuple[torch.Tensor, int, list[str]]:
    """Only the first of two optimizers was attached; the other one steps after it."""
    model = workloads.build_model("plain")
    optimizers = TwoOptimizers().optimizers(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizers[0], strategy, workers=workers) as pace:
            for step in range(NUM_STEPS):
                TwoOptimizers().step(model, optimizers, own_loss(workers.world.rank), step)
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    return workloads.flat_state(model), pace.strategy.step, said


@pytest.mark.parametrize("strategy", ["sync", "local-sgd", "daso"])
def test_an_optimizer_that_was_not_attached_is_seen(strategy: str) -> None:
    results = run_job(train_unattached, strategy, nodes=(2, 1))
    for end, count, said in results:
        assert torch.equal(end, results[0][0])
        assert count == NUM_STEPS
        assert said == []


def attach_on_one_node(workers: Workers) -> dict[str, list[str]]:
    said = {}
    for strategy in ("sync", "local-sgd", "daso"):
        model, optimizer = workloads.build("plain", "momentum")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attach(model, optimizer, strategy, workers=workers).detach()
        said[strategy] = [str(each.message) for each in caught]
    return said


def test_strategies_for_several_nodes_warn_of_one() -> None:
    for said in run_job(attach_on_one_node, nodes=(2,)):
        assert said["sync"] == []
        assert "LocalSgd found one node with 2 workers" in said["local-sgd"][0]
        assert "Daso found one node" in said["daso"][0]
    for nodes in ((1,), (1, 1)):
        assert all(said["daso"] == [] for said in run_job(attach_on_one_node, nodes=nodes))
