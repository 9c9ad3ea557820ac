"""Loops that make their loaders anew in every epoch."""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach
from unequal import NUM_SAMPLES, Texts, build, collate, flat, loss_of

EPOCHS = 50
VALIDATION = TensorDataset(torch.arange(20.0, dtype=torch.float64)[:, None])

Seen = list[tuple[int, list[int]]]
"""By step: the epoch, and the samples that this worker has trained on."""


def train(
    workers: Workers, folder: str, part: str, style: str
) -> tuple[Seen, torch.Tensor, list[int], int]:
    """Train and validate; the first part ends in the middle of its last epoch but one."""
    model, optimizer = build()
    pace = attach(model, optimizer, "sync", workers=workers)
    first_epoch = 0
    if part == "second":
        extra = pace.load(folder)
        assert extra is not None
        first_epoch = extra["epoch"]
    seen: Seen = []
    num_calls = []
    made: list[weakref.ref[Any]] = []
    gc.collect()
    gc.disable()  # loaders end with their last use, not some time later
    for epoch in range(first_epoch, EPOCHS):
        seed = epoch if style == "seeds" else 3
        loader = pace.loader(
            Texts(), 12, shuffle=True, seed=seed, shares=[2, 1], collate_fn=collate
        )
        made.append(weakref.ref(loader))
        for place, batch in enumerate(loader):
            seen.append((epoch, batch[2]))
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, batch, "samples"))
            optimizer.step()
            num_calls.append(len(pace._loop.when_computed))
            if part == "first" and (epoch, place) == (EPOCHS - 2, 2):
                pace.save(folder, extra={"epoch": epoch})
                return seen, flat(model), num_calls, len(pace._loaders.state())
        if style == "anonymous":
            del loader
            assert sum(len(x) for (x,) in pace.loader(VALIDATION, 10)) > 0
        else:
            validation = pace.loader(VALIDATION, 10)
            assert sum(len(x) for (x,) in validation) > 0
        if part == "boundary" and epoch == EPOCHS - 3:
            pace.save(folder, extra={"epoch": epoch + 1})
            return seen, flat(model), num_calls, len(pace._loaders.state())
    gc.enable()
    assert sum(one() is not None for one in made) <= 1
    return seen, flat(model), num_calls, len(pace._loaders.state())


@pytest.mark.parametrize(
    ("style", "before"),
    [("named", "first"), ("anonymous", "boundary"), ("named", "boundary"), ("seeds", "boundary")],
)
def test_a_loader_per_epoch_is_saved_and_resumed(style: str, before: str, tmp_path: Path) -> None:
    whole = run_job(train, str(tmp_path), "whole", style, nodes=(1, 1))
    first = run_job(train, str(tmp_path), before, style, nodes=(1, 1))
    second = run_job(train, str(tmp_path), "second", style, nodes=(1, 1))
    for one, half, rest in zip(whole, first, second, strict=True):
        assert half[0] + rest[0] == one[0]
        assert torch.equal(rest[1], one[1])
        assert half[3] == one[3] == 2, "one to train with and one to validate with"
        assert set(one[2]) == {0}, "shares are given, so nothing is timed"
    orders = []
    for epoch in range(EPOCHS):
        steps = zip(*([own for at, own in each[0] if at == epoch] for each in whole), strict=True)
        orders.append([index for step in steps for own in step for index in own])
        assert sorted(orders[-1]) == list(range(NUM_SAMPLES))
    assert len({tuple(order) for order in orders}) == EPOCHS, "every epoch is shuffled anew"


def adapt(workers: Workers) -> tuple[list[tuple[int, ...]], list[int]]:
    """The first shares of every epoch's loader; the second worker is three times as slow."""

    def slow_down(_module: nn.Module, inputs: Any) -> None:
        time.sleep((1 + 2 * workers.world.rank) * 0.001 * len(inputs[0]))

    model = nn.Linear(1, 1).double().to(DEVICE)
    model.register_forward_pre_hook(slow_down)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    samples = TensorDataset(torch.arange(240.0, dtype=torch.float64)[:, None])
    shares, num_timed = [], []
    with attach(model, optimizer, "sync", workers=workers) as pace:
        for _ in range(4):
            loader = pace.loader(samples, 16)
            shares.append(loader.shares)
            for (batch,) in loader:
                optimizer.zero_grad()
                torch.autograd.backward(model(batch.to(DEVICE)).mean())
                optimizer.step()
                num_timed.append(len(pace._loop.when_computed))
    return shares, num_timed


def test_a_new_loader_begins_with_the_speeds_that_are_known() -> None:
    first, second = run_job(adapt, nodes=(1, 1))
    assert first == second
    shares, num_timed = first
    assert shares[0] == (8, 8)
    assert shares[-1][0] >= 10  # loosely: a busy machine blurs speeds
    assert set(num_timed) == {1}, "only the loader at hand is timed"


def change(workers: Workers, folder: str, num_batches: int) -> list[str]:
    """Save a loader of batches of 12 after so many of them, and resume with other loaders."""
    model, optimizer = build()
    with attach(model, optimizer, "sync", workers=workers) as pace:
        loader = pace.loader(Texts(), 12, collate_fn=collate)
        for place, _ in enumerate(loader):
            if place + 1 == num_batches:
                break
        pace.save(folder)
    told = []
    for data, size in ((Texts(), 6), (VALIDATION, 12)):
        model, optimizer = build()
        with attach(model, optimizer, "sync", workers=workers) as pace:
            pace.load(folder)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    told.append(str(pace.loader(data, size).epoch))
                except ValueError as problem:
                    told.append(str(problem))
            told += [str(each.message) for each in caught]
    return told


def test_a_batch_size_changes_only_between_epochs(tmp_path: Path) -> None:
    twice = "the same samples would come twice"
    for said in run_job(change, str(tmp_path), 2, nodes=(1, 1)):
        assert said == [
            f"the checkpoint's loader has batch_size=12, and this one batch_size=6: {twice}",
            f"the checkpoint's loader has num_samples=53, and this one num_samples=20: {twice}",
        ]
    for said in run_job(change, str(tmp_path), NUM_SAMPLES, nodes=(1, 1)):
        assert said[:2] == ["1", "0"]
        assert said[2:] == [
            "the checkpoint has no loader over 20 samples like this one, which therefore begins "
            "with its first epoch"
        ]
