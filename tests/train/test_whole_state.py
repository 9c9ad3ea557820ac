"""What else a checkpoint holds: schedulers, random states, the user's values; background saves."""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, OneCycleLR, SequentialLR
from torch.utils.data import TensorDataset

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import CheckpointError, Loader, Pace, attach

NUM_STEPS, SAVED_AFTER = 14, 9  # six steps are an epoch


class Training:
    """A loop that needs all of a checkpoint to go on: dropout, noise, a scaler, two schedulers."""

    def __init__(self, workers: Workers, *, seed: int) -> None:
        torch.manual_seed(seed + workers.world.rank)
        np.random.seed(seed)
        random.seed(seed)
        layers = (nn.Linear(7, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 3))
        self.model = nn.Sequential(*layers).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        schedulers: list[LRScheduler] = [
            MultiStepLR(self.optimizer, [2, 4], gamma=0.5),
            OneCycleLR(self.optimizer, max_lr=0.1, total_steps=30),
        ]
        self.scheduler = SequentialLR(self.optimizer, schedulers, milestones=[5])
        self.scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=3)
        self.pace = attach(self.model, self.optimizer, "local-sgd", workers=workers, period=4)
        self.seen: list[tuple[int, int]] = []

    def loader(self) -> Loader:
        samples = torch.randn(48, 7, generator=torch.Generator().manual_seed(5))
        data = TensorDataset(torch.arange(48), samples)
        return self.pace.loader(data, 8, shuffle=True, shares="equal")

    def train(self, loader: Loader, num_steps: int) -> None:
        while num_steps:
            for indices, inputs in loader:
                self.seen += [(loader.epoch, int(index)) for index in indices]
                noise = random.random() + float(np.random.rand())
                self.optimizer.zero_grad()
                loss = (self.model(inputs.to(DEVICE)) - noise).square().mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                num_steps -= 1
                if not num_steps:
                    break

    def everything(self) -> list[Any]:
        numbers = [self.optimizer.param_groups[0]["lr"], self.scaler.get_scale()]
        return [workloads.flat_state(self.model), *numbers, random.random(), np.random.rand()]


def train_whole(workers: Workers) -> tuple[list[Any], list[tuple[int, int]]]:
    training = Training(workers, seed=0)
    training.train(training.loader(), NUM_STEPS)
    return training.everything(), training.seen


def train_first(workers: Workers, folder: str) -> list[tuple[int, int]]:
    training = Training(workers, seed=0)
    training.pace.register(scheduler=training.scheduler, scaler=training.scaler)
    loader = training.loader()
    training.train(loader, SAVED_AFTER)
    pending = training.pace.save(folder, extra={"best": np.float32(0.5)}, background=True)
    seen = list(training.seen)
    training.train(loader, 2)  # meanwhile; the checkpoint is a copy
    training.pace.finish()
    assert pending.done()
    return seen


def train_second(workers: Workers, folder: str) -> tuple[list[Any], list[tuple[int, int]]]:
    training = Training(workers, seed=7)
    training.pace.register(scaler=training.scaler)
    assert training.pace.load(Path(folder, "nothing"), missing_ok=True) is None
    assert training.pace.load(folder) == {"best": 0.5}
    # What is registered, or made, after the load gets its state then.
    training.pace.register(scheduler=training.scheduler)
    training.train(training.loader(), NUM_STEPS - SAVED_AFTER)
    return training.everything(), training.seen


def test_a_run_goes_on_with_all_that_it_depends_on(tmp_path: Path) -> None:
    whole = run_job(train_whole, nodes=(1, 1))
    first = run_job(train_first, str(tmp_path), nodes=(1, 1))
    second = run_job(train_second, str(tmp_path), nodes=(1, 1))
    for (expected, expected_seen), seen, (found, seen_later) in zip(
        whole, first, second, strict=True
    ):
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert seen + seen_later == expected_seen
    counts = Counter(sample for _, seen in whole for sample in seen)
    assert set(counts.values()) == {1}
    assert {sample for epoch, sample in counts if epoch == 0} == set(range(48))


def start(workers: Workers, *, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, Pace]:
    model, optimizer = workloads.build("plain", "momentum", seed=seed)
    return model, optimizer, attach(model, optimizer, "local-sgd", workers=workers, period=2)


def refuse(workers: Workers, folder: str) -> list[str]:
    _model, optimizer, pace = start(workers)
    pace.save(folder)
    scheduler = MultiStepLR(optimizer, [2])
    pace.register(scheduler=scheduler)
    messages = []
    for call in (
        lambda: pace.load(folder),
        lambda: pace.register(epoch=3),
        lambda: pace.register(scheduler=MultiStepLR(optimizer, [2])),
        lambda: pace.save(folder, extra={"net": len}),
    ):
        with pytest.raises(ValueError) as problem:
            call()
        messages.append(str(problem.value))
    return messages


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    for lacking, number, other, function in run_job(refuse, str(tmp_path), nodes=(1, 1)):
        assert lacking.endswith("given here and not when it was saved")
        assert "the checkpoint holds no scheduler, which pace.register() was" in lacking
        assert number.startswith("epoch is a int") and "extra=" in number
        assert other == "another scheduler is registered already; use another name"
        assert "extra['net'] is of type builtins.builtin_function_or_method" in function


def fail_in_the_background(workers: Workers, folder: str) -> dict[str, Any]:
    model, optimizer, pace = start(workers)
    train = workloads.batch_loss

    def step(number: int) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(train(model, number, workers.world.rank))
        optimizer.step()

    step(1)
    pace.save(folder, background=True)
    step(2)
    pace.save(folder, background=True)  # waits for the one before
    found: dict[str, Any] = {}
    is_armed = [workers.world.rank == 1]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_armed == [True] and event == "open" and str(arguments[0]).endswith(".distcp"):
            is_armed.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pace.load(folder)  # waits as well
    found["left"] = [path.name for path in Path(folder).iterdir()]
    sys.addaudithook(hook)
    step(3)
    pending = pace.save(folder, background=True)
    step(4)
    for call in (pace.finish, pending.result):
        with pytest.raises(CheckpointError) as problem:
            call()
        found[call.__name__] = str(problem.value)
    found["left at last"] = [path.name for path in Path(folder).iterdir()]
    pace.finish()  # the error was told
    pace.load(folder)
    found["step"] = pace.strategy.step
    pace.save(folder, background=True)
    pace.detach()  # waits too
    found["complete"] = [str(path.relative_to(folder)) for path in Path(folder).glob("*/*.json")]
    return found


def test_a_save_in_the_background_fails_for_all_and_is_told(tmp_path: Path) -> None:
    for found in run_job(fail_in_the_background, str(tmp_path), nodes=(1, 1)):
        assert found["left"] == ["save-000002"]
        assert found["finish"] == found["result"]
        assert found["finish"].startswith("worker 1 on node 1 (")
        assert found["finish"].endswith("save-000003/worker-1: No space left on device")
        assert found["left at last"] == ["save-000002"]
        assert found["step"] == 2
        assert found["complete"] == ["save-000003/complete.json"]


def leave_early(workers: Workers, folder: str) -> list[str]:
    """By an error, while a save is under way."""
    _model, _optimizer, pace = start(workers)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".distcp"):
            time.sleep(0.5)

    sys.addaudithook(hook)
    with pytest.raises(SystemExit), pace:
        pace.save(folder, background=True)
        sys.exit(0)
    return [str(path.relative_to(folder)) for path in Path(folder).glob("*/*.json")]


def test_a_save_in_the_background_is_completed_when_the_loop_is_left(tmp_path: Path) -> None:
    found = run_job(leave_early, str(tmp_path), nodes=(1, 1))
    assert found == [["save-000001/complete.json"]] * 2
