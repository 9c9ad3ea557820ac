"""A run that is saved and resumed by new processes equals one that was never interrupted."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.teams import Workers
from paceline.train import Pace, attach

SAVED_AFTER, NUM_STEPS = 10, 20
# Flat from the third report on: the count of bad reports is under way when the run is saved.
REPORTS = {step: (1.0 if step < 7 else 0.5) for step in range(1, NUM_STEPS + 1)}

DASO: dict[str, Any] = {"warmup_steps": 1, "late": "wait"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sync", {}),
    ("sync-hierarchical", {}),
    ("local-sgd", {"period": 3}),
    ("local-sgd", {"period": 4, "wire": "int8"}),
    ("post-local-sgd", {"period": 3, "sync_steps": 4}),
    ("post-local-sgd", {"period": 3, "sync_steps": 14}),
    ("slowmo", {"period": 3}),
    ("co2", {"period": 3}),
    ("gossip", {"period": 2}),
    ("demo", {"keep": 3, "chunk": 16}),
    ("diloco", {"period": 3}),
    ("diloco", {"period": 3, "wire": "fp16"}),
    ("streaming-diloco", {"period": 6, "fragments": 3, "delay": 3}),
    ("streaming-diloco", {"period": 6, "fragments": 2, "delay": 5, "wire": "bf16"}),
    # Started at step 9, 10 or 7, and under way at 10.
    *(
        ("daso", DASO | {"period": 4, "delay": 3, "merge": merge, "wire": wire, "patience": 30})
        for merge in ("corrected", "stale")
        for wire in ("fp32", "bf16", "fp16", "int8")
    ),
    ("daso", DASO | {"period": 9, "delay": 9, "total_steps": NUM_STEPS}),
    ("daso", DASO | {"period": 4, "delay": 4}),  # with a plateau before, and one after
]


def train(
    workers: Workers,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    steps: range,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
        optimizer.step()
        pace.report(REPORTS[step])


def everything(model: torch.nn.Module, pace: Pace) -> list[torch.Tensor]:
    state = [tensor.detach().cpu().double() for tensor in model.state_dict().values()]
    numbers = pace.strategy.status() | {"step": pace.strategy.step}
    return [*state, torch.tensor(list(numbers.values()), dtype=torch.float64)]


def run_part(
    workers: Workers, part: str, folder: str
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """For every case: everything at the end of training, before and after finish()."""
    results = []
    for index, (strategy, options) in enumerate(CASES):
        place = Path(folder, str(index))
        # New processes start elsewhere, and get all from the checkpoint.
        model, optimizer = workloads.build("normed", "adamw", seed=7 if part == "second" else 0)
        with attach(model, optimizer, strategy, workers=workers, **options) as pace:
            if part == "second":
                pace.load(place)
            first = SAVED_AFTER + 1 if part == "second" else 1
            last = SAVED_AFTER if part == "first" else NUM_STEPS
            train(workers, model, optimizer, pace, range(first, last + 1))
            if part == "first":
                pace.save(place)
            before = everything(model, pace)
        results.append((before, everything(model, pace)))
    return results


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run_job(run_part, "whole", str(tmp_path))
    run_job(run_part, "first", str(tmp_path))
    resumed = run_job(run_part, "second", str(tmp_path))
    for expected, found in zip(whole, resumed, strict=True):
        for case, moments in enumerate(zip(expected, found, strict=True)):
            for wanted, got in zip(*moments, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7, msg=str(CASES[case]))


def load_twice(workers: Workers) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same checkpoint, held in memory, goes on the same way each time it is loaded."""
    model, optimizer = workloads.build("normed", "adamw")
    options = DASO | {"period": 4, "delay": 3, "wire": "int8"}
    pace = attach(model, optimizer, "daso", workers=workers, **options)
    train(workers, model, optimizer, pace, range(1, SAVED_AFTER + 1))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    # As a user stores it, and on the CPU, wherever the model is.
    file = io.BytesIO()
    torch.save(pace.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True, map_location="cpu")
    ends = []
    for _ in range(3):
        train(workers, model, optimizer, pace, range(SAVED_AFTER + 1, NUM_STEPS + 1))
        ends.append(workloads.flat_state(model))
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        pace.load_state_dict(state)
    pace.detach()
    return ends[0], ends[1], ends[2]


def test_loading_leaves_the_checkpoint_as_it_was() -> None:
    for first, second, third in run_job(load_twice, nodes=(2, 1)):
        assert torch.equal(second, first)
        assert torch.equal(third, first)


def refuse(workers: Workers, folder: str) -> list[str]:
    """What is said about checkpoints that do not fit."""
    messages = []

    def fresh(strategy: str, **options: Any) -> Pace:
        model, optimizer = workloads.build("plain", "momentum")
        return attach(model, optimizer, strategy, workers=workers, **options)

    def expect_refusal(pace: Pace, state: dict[str, Any]) -> None:
        with pytest.raises(ValueError) as problem:
            pace.load_state_dict(state)
        messages.append(str(problem.value))

    daso, local = fresh("daso"), fresh("local-sgd")
    expect_refusal(daso, local.state_dict())
    expect_refusal(daso, {})
    expect_refusal(daso, daso.state_dict() | {"version": 99})
    expect_refusal(fresh("daso", wire="int8"), daso.state_dict())
    expect_refusal(daso, fresh("daso", wire="int8").state_dict())
    with pytest.raises(ValueError) as problem:
        daso.load(Path(folder, "nothing"))
    messages.append(str(problem.value))
    four = fresh("streaming-diloco", fragments=4)
    expect_refusal(fresh("streaming-diloco", fragments=1), four.state_dict())
    assert four.strategy.lockstep() is workers.node
    assert fresh("sync").strategy.lockstep() is workers.world
    early = fresh("post-local-sgd", sync_steps=1)
    assert early.strategy.lockstep() is workers.world
    early.strategy.step = 1
    assert early.strategy.lockstep() is workers.node
    return messages


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for messages in run_job(refuse, str(tmp_path), nodes=(1, 1)):
        other, empty, version, full, narrow, missing, fragments = messages
        assert "holds LocalSgd" in other and "Daso" in other
        assert "holds None" in empty
        assert "version 99" in version
        assert "wire='fp32'" in full
        assert "narrow wire" in narrow
        assert "no complete checkpoint" in missing
        assert fragments == "the checkpoint has 4 fragments, and 1 is attached"
        assert all("\n" not in message for message in messages)


def save_elsewhere(workers: Workers, folder: str) -> list[str]:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "daso", workers=workers) as pace:
        pace.save(Path(folder, "deep", "down"))
        # Everybody has written when save() returns.
        return sorted(path.name for path in Path(folder, "deep", "down", "save-000001").iterdir())


def test_every_worker_writes_its_own_file(tmp_path: Path) -> None:
    for names in run_job(save_elsewhere, str(tmp_path), nodes=(2, 1)):
        assert names == ["complete.json", "worker-0", "worker-1", "worker-2"]
