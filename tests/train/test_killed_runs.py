"""Workers are killed at random; the resumed run is the uninterrupted one, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach

STRATEGIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "local-sgd": {"period": 4},
    "daso": {"period": 4, "delay": 3, "late": "wait", "warmup_steps": 2},
    "diloco": {"period": 4},
}
NUM_SAMPLES, BATCH, NUM_EPOCHS, SAVE_EVERY = 68, 12, 3, 5
NUM_STEPS = NUM_EPOCHS * -(-NUM_SAMPLES // BATCH)
PLACES = ("forward", "backward", "step", "save")

Seen = dict[int, tuple[int, list[int]]]
"""By step: the epoch, and this worker's samples."""


def train(
    workers: Workers,
    name: str,
    folder: str,
    death: tuple[int, int, str] | None,
) -> tuple[torch.Tensor, Seen]:
    """Train to the end, or to this worker's death: a rank, a step and a place in it."""

    def die_at(place: str) -> None:
        if death == (workers.world.rank, step, place):
            os.kill(os.getpid(), signal.SIGKILL)

    # Where there is a save, everything comes from it.
    seed = 99 if list(Path(folder).glob("*/complete.json")) else 0
    torch.manual_seed(seed + workers.world.rank)
    layers = (nn.Linear(7, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: Seen = {}
    with attach(model, optimizer, name, workers=workers, **STRATEGIES[name]) as pace:
        loader = pace.loader(_data(), BATCH, shuffle=True, shares="equal")
        found = pace.load(folder, missing_ok=True) or {"seen": {}}
        seen |= found["seen"]
        while loader.epoch < NUM_EPOCHS:
            for indices, inputs in loader:
                step = pace.strategy.step + 1
                seen[step] = loader.epoch, indices.tolist()
                die_at("forward")
                optimizer.zero_grad()
                loss = model(inputs.to(DEVICE)).square().mean()
                die_at("backward")
                loss.backward()
                die_at("step")
                optimizer.step()
                if step % SAVE_EVERY == 0:
                    pace.save(folder, extra={"seen": seen}, background=step % 2 == 0)
                    die_at("save")
    return workloads.flat_state(model), seen


def _data() -> TensorDataset:
    inputs = torch.randn(NUM_SAMPLES, 7, generator=torch.Generator().manual_seed(5))
    return TensorDataset(torch.arange(NUM_SAMPLES), inputs)


def train_all(
    workers: Workers, folder: str, death: tuple[int, int, str] | None, name: str = ""
) -> dict[str, tuple[torch.Tensor, Seen]]:
    """Under one strategy after the other; death comes under the one that is named."""
    return {
        each: train(workers, each, f"{folder}/{each}", death if each == name else None)
        for each in STRATEGIES
    }


def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = run_job(train_all, str(tmp_path / "whole"), None)
    deaths = {}
    for name in STRATEGIES:
        # Drawn anew by every run of the tests; a failure tells what it was.
        chance = random.SystemRandom()
        step = 1 + chance.randrange(NUM_STEPS)
        place = PLACES[chance.randrange(3 if step % SAVE_EVERY else 4)]
        deaths[name] = chance.randrange(4), step, place
        with pytest.raises(AssertionError, match=f"worker {deaths[name][0]} died"):
            run_job(train_all, str(tmp_path / "killed"), deaths[name], name)
    resumed = run_job(train_all, str(tmp_path / "killed"), None)
    every = [(epoch, index) for epoch in range(NUM_EPOCHS) for index in range(NUM_SAMPLES)]
    for name, death in deaths.items():
        for expected, found in zip(whole, resumed, strict=True):
            assert torch.equal(found[name][0], expected[name][0]), (name, death)
        samples = [
            (epoch, index)
            for found in resumed
            for epoch, indices in found[name][1].values()
            for index in indices
        ]
        assert Counter(samples) == Counter(every), (name, death)
