"""Unequal batches that the loop weighs: a run that was killed ends as the undisturbed one, by bits.

Weights count from the first batches, and the batches after a resume are others.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach

SAVED_AFTER, DIES_AFTER, NUM_STEPS = 6, 8, 17  # inside a period, with an exchange under way
DYING = 2
STRATEGIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "local-sgd": {"period": 4},
    "daso": {"period": 4, "delay": 3, "late": "wait", "warmup_steps": 1},
    "diloco": {"period": 4},
    "gossip": {"period": 4},
    "co2": {"period": 4},
}


def size_of(step: int, rank: int) -> int:
    """Samples of a worker's batch: larger by the step, and never the same on two workers."""
    return 1 + (step + 3 * rank) % 7 + step // 4


def train(workers: Workers, name: str, folder: str, *, dies: bool = False) -> torch.Tensor:
    rank = workers.world.rank
    model, optimizer = workloads.build("plain", "adamw", seed=rank)
    with attach(model, optimizer, name, workers=workers, **STRATEGIES[name]) as pace:
        pace.load(folder, missing_ok=True)
        while (step := pace.strategy.step + 1) <= NUM_STEPS:
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(size_of(step, rank), workloads.NUM_FEATURES, generator=generator)
            pace.weigh(len(inputs))
            optimizer.zero_grad()
            torch.autograd.backward(model(inputs.to(DEVICE)).square().mean())
            optimizer.step()
            if step == SAVED_AFTER:
                pace.save(folder)
            if dies and rank == DYING and step == DIES_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
    return workloads.flat_state(model)


def train_all(workers: Workers, folder: str) -> dict[str, torch.Tensor]:
    return {name: train(workers, name, f"{folder}/{name}") for name in STRATEGIES}


def train_to_death(workers: Workers, folder: str, name: str) -> None:
    train(workers, name, f"{folder}/{name}", dies=True)


def test_a_killed_run_goes_on_with_the_weights_it_had(tmp_path: Path) -> None:
    whole = run_job(train_all, str(tmp_path / "whole"), nodes=(2, 1))
    for name in STRATEGIES:
        with pytest.raises(AssertionError, match=f"worker {DYING} died"):
            run_job(train_to_death, str(tmp_path / "killed"), name, nodes=(2, 1))
    resumed = run_job(train_all, str(tmp_path / "killed"), nodes=(2, 1))
    for expected, found in zip(whole, resumed, strict=True):
        differing = [name for name in STRATEGIES if not torch.equal(found[name], expected[name])]
        assert not differing
