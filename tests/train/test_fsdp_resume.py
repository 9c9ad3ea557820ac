"""Checkpoints of models that FSDP2 shards inside each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import workloads
from jobs import run_job
from paceline.teams import Workers
from paceline.train import CheckpointError, Pace, attach
from strategies.test_against_reference import NUM_STEPS, TRAININGS
from train.test_fsdp import CASES, NODES, Case, shard

SAVED_AFTER = 10  # DASO's exchanges are under way
Training = tuple[nn.Module, torch.optim.Optimizer, Pace]


def start(workers: Workers, case: Case, *, seed: int, is_sharded: bool = True) -> Training:
    name, model_kind, optimizer_kind = case
    model = workloads.build_model(model_kind, seed=seed)
    if is_sharded:
        shard(model, nodes=tuple(map(len, workers.ranks_by_node)))
    optimizer = workloads.build_optimizer(optimizer_kind, model, has_groups=model_kind == "groups")
    training = TRAININGS[name]
    options = training.options | training.real_only
    return model, optimizer, attach(model, optimizer, training.strategy, workers=workers, **options)


def train(training: Training, rank: int, steps: range) -> None:
    model, optimizer, _ = training
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, rank))
        optimizer.step()


def end(training: Training) -> list[torch.Tensor]:
    """This worker's parts of the model, and the optimizer's values of them."""
    model, optimizer, _ = training
    found = [each.detach().to_local().clone() for each in model.parameters()]  # type: ignore[attr-defined]
    for parameter in model.parameters():
        for value in optimizer.state[parameter].values():
            found.append(getattr(value, "to_local", lambda value=value: value)().clone())
    return found


def train_whole(workers: Workers, folder: str) -> list[list[torch.Tensor]]:
    found = []
    for number, case in enumerate(CASES):
        training = start(workers, case, seed=0)
        train(training, workers.world.rank, range(1, SAVED_AFTER + 1))
        training[2].save(Path(folder, str(number)), background=number % 2 == 0)
        train(training, workers.world.rank, range(SAVED_AFTER + 1, NUM_STEPS + 1))
        found.append(end(training))
        training[2].detach()
    return found


def train_second(workers: Workers, folder: str) -> list[list[torch.Tensor]]:
    found = []
    for number, case in enumerate(CASES):
        training = start(workers, case, seed=7)
        with torch.no_grad():  # leaves the outermost layer's parameters gathered
            training[0](workloads.make_batch(0, 0)[0])
        training[2].load(Path(folder, str(number)))
        train(training, workers.world.rank, range(SAVED_AFTER + 1, NUM_STEPS + 1))
        found.append(end(training))
        training[2].detach()
    return found


def be_refused(workers: Workers, folder: str, is_sharded: bool) -> str:
    _, _, pace = start(workers, CASES[0], seed=0, is_sharded=is_sharded)
    try:
        pace.load(Path(folder, "0"), average=True)
    except CheckpointError as error:
        return str(error)
    return ""


def save_whole(workers: Workers, folder: str) -> None:
    start(workers, CASES[0], seed=0, is_sharded=False)[2].save(Path(folder, "0"))


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run_job(train_whole, str(tmp_path), nodes=NODES)
    resumed = run_job(train_second, str(tmp_path), nodes=NODES)
    for rank, (expected, found) in enumerate(zip(whole, resumed, strict=True)):
        for case, one, other in zip(CASES, expected, found, strict=True):
            assert len(one) == len(other)
            assert all(map(torch.equal, one, other)), f"{case}, worker {rank}"

    arguments: list[Any] = [str(tmp_path), True]
    for sentence in run_job(be_refused, *arguments, nodes=(1, 1)):
        assert "2 nodes with 2 workers each, and this job has 2 nodes with 1 worker" in sentence
        assert sentence.endswith("different parts of the model: resume on the same layout")
    arguments = [str(tmp_path), False]
    for sentence in run_job(be_refused, *arguments, nodes=NODES):
        assert "of a model that fully_shard has sharded, and a model that is whole" in sentence


def test_a_whole_models_checkpoint_is_refused(tmp_path: Path) -> None:
    run_job(save_whole, str(tmp_path), nodes=NODES)
    for sentence in run_job(be_refused, str(tmp_path), True, nodes=NODES):
        assert "of a model that is whole on every worker, and a model that fully_shard" in sentence
