"""Nodes that differ go on from their average on another number of nodes."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.strategies import Sync
from paceline.teams import Workers
from paceline.train import CheckpointError, attach

NUM_STEPS = 7
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "local-sgd": ("local-sgd", {"period": 4}),
    "nodes": ("local-sgd", {"period": 4, "weighting": "nodes", "wire": "int8"}),
    "diloco": ("diloco", {"period": 3}),
    "streaming-diloco": ("streaming-diloco", {"period": 4, "fragments": 2, "wire": "bf16"}),
    "daso": ("daso", {"warmup_steps": 1, "period": 4, "delay": 3, "late": "wait"}),
    "slowmo": ("slowmo", {"period": 3}),
    "co2": ("co2", {"period": 3}),
    "gossip": ("gossip", {"period": 2}),
    "demo": ("demo", {"keep": 3, "chunk": 16}),
}


def train(
    workers: Workers, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
        optimizer.step()


def moments(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    names = ("step", "exp_avg", "exp_avg_sq")
    return torch.cat([s[name].flatten().cpu() for s in optimizer.state.values() for name in names])


def save_each(workers: Workers, folder: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    found = {}
    for name, (strategy, options) in CASES.items():
        model, optimizer = workloads.build("normed", "adamw")
        pace = attach(model, optimizer, strategy, workers=workers, **options)
        train(workers, model, optimizer, range(1, NUM_STEPS + 1))
        # Each node has a disk of its own.
        pace.save(Path(folder, f"disk-{workers.node_index}", name), extra={"at": NUM_STEPS})
        found[name] = workloads.flat_state(model), moments(optimizer)
        pace.detach()
    return found


def load_each(workers: Workers, folder: str) -> dict[str, Any]:
    found = {}
    for name, (strategy, options) in CASES.items():
        model, optimizer = workloads.build("normed", "adamw", seed=7)
        pace = attach(model, optimizer, strategy, workers=workers, **options)
        own = Path(folder, f"disk-{workers.node_index}", name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            extra = pace.load(own, average=True)
        loaded = workloads.flat_state(model), moments(optimizer)
        drawn = torch.rand(1).item()
        step = pace.strategy.step
        train(workers, model, optimizer, range(NUM_STEPS + 1, NUM_STEPS + 6))
        pace.finish()
        end = workloads.flat_state(model)
        pace.save(own)  # what was seen of another layout is gone
        pace.detach()
        told = [str(one.message) for one in caught if "average" in str(one.message)]
        found[name] = (*loaded, extra, step, drawn, end, told)
    return found


def mean_of(values: list[torch.Tensor], weights: list[float]) -> torch.Tensor:
    summed = sum(weight * value.double() for weight, value in zip(weights, values, strict=True))
    assert isinstance(summed, torch.Tensor)
    return summed / sum(weights)


# By the new layout: which of the saved workers' parts are still seen.
LAYOUTS = {(1,): [0, 1], (2, 1, 1): [0, 1, 2]}


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_other_nodes_go_on_from_the_average(tmp_path: Path, nodes: tuple[int, ...]) -> None:
    saved = run_job(save_each, str(tmp_path), nodes=(2, 1))
    if nodes == (1,):  # the second node is lost, and its disk with it
        shutil.rmtree(tmp_path / "disk-1")
    answers = run_job(load_each, str(tmp_path), nodes=nodes)
    ranks = LAYOUTS[nodes]
    for name in CASES:
        weights = [0.5, 0.5, 1.0] if name == "nodes" else [1.0, 1.0, 1.0]
        for place in (0, 1):
            expected = mean_of([saved[r][name][place] for r in ranks], [weights[r] for r in ranks])
            for answer in answers:
                found = answer[name][place].double()
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        for worker, answer in enumerate(answers):
            _, _, extra, step, drawn, end, told = answer[name]
            assert extra == {"at": NUM_STEPS} and step == NUM_STEPS
            assert torch.equal(end, answers[0][name][5]) and bool(end.isfinite().all())
            assert bool(told) == (nodes == (1,))
            assert "nobody sees the parts of workers [2]" in "".join(told) or not told
            others = [each[name][4] for i, each in enumerate(answers) if i != worker]
            assert drawn not in others


class Stubborn(Sync):
    """Keeps something, and does not say what it is worth elsewhere."""

    def lockstep(self) -> None:  # type: ignore[override]
        return None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": 3}


def load_stubborn(workers: Workers, folder: str, is_first: bool) -> str:
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, Stubborn(), workers=workers)
    if is_first:
        pace.save(folder)
        return ""
    with pytest.raises(CheckpointError) as problem:
        pace.load(folder, average=True)
    return str(problem.value)


def test_a_strategy_that_cannot_is_named(tmp_path: Path) -> None:
    run_job(load_stubborn, str(tmp_path), True, nodes=(1, 1))
    (message,) = run_job(load_stubborn, str(tmp_path), False, nodes=(1,))
    assert "Stubborn does not say how to go on from an average of its workers" in message


def lose_a_disk(workers: Workers, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Under sync, a node that comes back without its files gets everything from the others."""
    own = Path(folder, f"disk-{workers.node_index}")
    model, optimizer = workloads.build("plain", "adamw")
    pace = attach(model, optimizer, "sync", workers=workers)
    train(workers, model, optimizer, range(1, 4))
    pace.save(own)
    saved = workloads.flat_state(model)
    if workers.node_index == 0:
        shutil.rmtree(own)
    train(workers, model, optimizer, range(4, 6))
    pace.load(own)
    assert pace.strategy.step == 3
    return saved, workloads.flat_state(model)


def test_a_node_without_files_gets_them_from_the_others(tmp_path: Path) -> None:
    for saved, loaded in run_job(lose_a_disk, str(tmp_path), nodes=(1, 1)):
        assert torch.equal(saved, loaded)
