"""However a run ends, all workers end equal, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import workloads
from jobs import run_job
from paceline.strategies import strategy_names
from paceline.teams import Workers
from paceline.train import attach

# Odd lengths: the last exchange was some steps ago, and another may be under way.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sync", {}),
    ("sync-hierarchical", {}),
    ("local-sgd", {"period": 4}),
    ("local-sgd", {"period": 1}),
    ("local-sgd", {"period": 3, "wire": "int8"}),
    ("post-local-sgd", {"period": 4, "sync_steps": 3}),
    ("post-local-sgd", {"sync_steps": 100}),
    ("diloco", {"period": 5}),
    ("diloco", {"period": 13, "wire": "bf16"}),
    ("streaming-diloco", {"period": 6, "fragments": 3, "delay": 2}),
    ("streaming-diloco", {"period": 4, "fragments": 2, "delay": 4, "wire": "fp16"}),
    ("streaming-diloco", {"period": 13, "fragments": 1, "delay": 0}),
    ("daso", {}),
    ("daso", {"merge": "stale", "delay": 4, "wire": "int8"}),
    ("daso", {"period": 5, "delay": 5, "warmup_steps": 0, "wire": "bf16"}),
    ("daso", {"period": 1, "delay": 0, "warmup_steps": 0}),
    ("slowmo", {"period": 4, "wire": "int8"}),
    ("co2", {"period": 4}),
    ("gossip", {"period": 2}),
    ("demo", {"sign": True}),
    ("auto", {"allow": "local-sgd", "max_period": 4, "wires": "fp32"}),
]


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, num_steps: int) -> None:
    for step in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, rank))
        optimizer.step()


def train_to_the_end(workers: Workers) -> list[list[dict[str, torch.Tensor]]]:
    """States after finish(), after more steps and finish() again, and after the context."""
    results = []
    for strategy, options in CASES:
        model, optimizer = workloads.build("normed", "adamw")
        rank = workers.world.rank
        states = []
        with attach(model, optimizer, strategy, workers=workers, **options) as pace:
            train(model, optimizer, rank, 13)
            pace.finish()
            pace.finish()
            states.append(everything(model))
            train(model, optimizer, rank, 3)
            pace.finish()
            states.append(everything(model))
            train(model, optimizer, rank, 2)
            # An evaluation on one worker alone changes only its counters.
            if rank == 0:
                model(workloads.make_batch(0, 0)[0])
        states.append(everything(model))
        results.append(states)
    return results


def assert_equal(by_worker: list[dict[str, torch.Tensor]]) -> None:
    for state in by_worker:
        assert state.keys() == by_worker[0].keys()
        for name, tensor in state.items():
            assert torch.equal(tensor, by_worker[0][name]), name
            assert tensor.isfinite().all(), name


@pytest.mark.parametrize("nodes", [(2,), (2, 2), (2, 1), (1, 1, 1)])
def test_workers_end_equal_after_finish(nodes: tuple[int, ...]) -> None:
    by_worker = run_job(train_to_the_end, nodes=nodes)
    for case in range(len(CASES)):
        for moment in range(3):
            assert_equal([states[case][moment] for states in by_worker])


def test_every_strategy_is_tried() -> None:
    assert {name for name, _ in CASES} == set(strategy_names())


KNOWN_LENGTHS: list[dict[str, Any]] = [
    {"total_steps": 13},
    {"total_steps": 13, "cooldown_steps": 0, "period": 6, "delay": 6},
    {"total_steps": 13, "merge": "stale", "wire": "int8"},
    {"total_epochs": 2.6, "steps_per_epoch": 5, "warmup_epochs": 1, "wire": "fp16"},
    {"total_steps": 2},  # passed long ago
    {"total_steps": 13, "late": "wait", "merge": "stale", "warmup_steps": 0, "wire": "bf16"},
]


def train_known_lengths(workers: Workers) -> list[dict[str, torch.Tensor]]:
    results = []
    for options in KNOWN_LENGTHS:
        model, optimizer = workloads.build("normed", "momentum")
        pace = attach(model, optimizer, "daso", workers=workers, **options)
        train(model, optimizer, workers.world.rank, 13)
        results.append(everything(model))
        pace.detach()
    return results


@pytest.mark.parametrize("nodes", [(2, 2), (1, 2)])
def test_a_run_of_known_length_ends_equal_without_finish(nodes: tuple[int, ...]) -> None:
    by_worker = run_job(train_known_lengths, nodes=nodes)
    for case in range(len(KNOWN_LENGTHS)):
        assert_equal([results[case] for results in by_worker])
