"""Loaders: which samples come when, from where, and by which shares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach
from unequal import EPOCHS, NUM_SAMPLES, Texts, build, collate, flat, loss_of, whole_batches


def resume(workers: Workers, folder: str, part: str) -> tuple[list[list[int]], int]:
    """An epoch and a half, saved in the middle of an epoch; a sampler orders the samples."""
    model, optimizer = build()
    sampler = torch.utils.data.RandomSampler(range(NUM_SAMPLES))
    torch.manual_seed(workers.world.rank)  # every worker would shuffle in its own way
    pace = attach(model, optimizer, "sync", workers=workers)
    seen = []
    if part == "second":
        pace.load(folder)
    loader = pace.loader(Texts(), 8, sampler=sampler, shares=[3, 1, 2], collate_fn=collate)
    for epoch in range(loader.epoch, 2):
        for place, batch in enumerate(loader):
            seen.append(batch[2])
            if part == "first" and (epoch, place) == (1, 2):
                pace.save(folder)
                return seen, loader.epoch
    return seen, loader.epoch


def test_a_resumed_epoch_sees_every_sample_once(tmp_path: Path) -> None:
    first = run_job(resume, str(tmp_path), "first", nodes=(2, 1))
    second = run_job(resume, str(tmp_path), "second", nodes=(2, 1))
    assert [epoch for _, epoch in second] == [2, 2, 2]
    for epoch in (0, 1):
        steps = range(7 * epoch, 7 * (epoch + 1))
        seen = [
            index
            for before, after in zip(first, second, strict=True)
            for step in steps
            for index in [*before[0], *after[0]][step]
        ]
        assert sorted(seen) == list(range(NUM_SAMPLES))


def adapt(workers: Workers, strategy: str, folder: str) -> tuple[list[Any], list[Any], list[int]]:
    """Shares over an epoch, of workers of which the second is three times as slow; then resumed."""

    def slow_down(_module: nn.Module, inputs: Any) -> None:
        time.sleep((1 + 2 * workers.world.rank) * 0.001 * len(inputs[0]))

    found: list[list[Any]] = []
    seen = []
    samples = torch.utils.data.TensorDataset(torch.arange(640.0, dtype=torch.float64)[:, None])
    for part in range(2):
        torch.manual_seed(0)
        model = nn.Linear(1, 1).double().to(DEVICE)
        model.register_forward_pre_hook(slow_down)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        with attach(model, optimizer, strategy, workers=workers) as pace:
            loader = pace.loader(samples, 16)
            if part:
                pace.load(folder)
            found.append([])
            for (batch,) in loader:
                optimizer.zero_grad()
                torch.autograd.backward(model(batch.to(DEVICE)).mean())
                optimizer.step()
                found[-1].append(loader.shares)
                seen += batch.flatten().int().tolist()
                if part == 0 and len(found[0]) == 30:
                    pace.save(folder)
                    break
    return found[0], found[1], seen


@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_shares_follow_measured_speeds_and_are_resumed(strategy: str, tmp_path: Path) -> None:
    results = run_job(adapt, strategy, str(tmp_path), nodes=(1, 1))
    before, after, _ = results[0]
    assert results[1][:2] == (before, after)
    assert before[0] == (8, 8)
    assert {sum(shares) for shares in before + after} == {16}
    # Loosely: a busy machine blurs speeds.
    assert before[-1][0] >= 10
    assert after[0] == before[-1]
    assert sorted(index for _, _, seen in results for index in seen) == list(range(640))


class Stream(IterableDataset[Any]):
    def __init__(self, start: int, stop: int) -> None:
        self.range = range(start, stop)

    def __iter__(self) -> Any:
        return (Texts()[index] for index in self.range)


def stream(workers: Workers) -> list[tuple[list[list[int]], torch.Tensor]]:
    """One stream for all; then a stream for each, of different lengths."""
    found = []
    own = [(0, 9), (9, 40), (40, 53)][workers.world.rank]
    for part, is_sharded in (((0, NUM_SAMPLES), False), (own, True)):
        model, optimizer = build()
        seen = []
        with attach(model, optimizer, "sync", workers=workers) as pace:
            loader = pace.loader(
                Stream(*part), 12, sharded=is_sharded, shares=[2, 3, 1], collate_fn=collate
            )
            for batch in loader:
                optimizer.zero_grad()
                torch.autograd.backward(loss_of(model, batch, "samples"))
                optimizer.step()
                counts = pace._replica.weight
                seen.append(batch[2] if counts is None or counts > 0 else [])
        found.append((seen, flat(model)))
    return found


def test_streams_are_shared_by_weight_and_end_together() -> None:
    results = run_job(stream, nodes=(2, 1))
    for case in range(2):
        steps = list(zip(*(seen for seen, _ in (by[case] for by in results)), strict=True))
        assert sorted(i for step in steps for own in step for i in own) == [*range(NUM_SAMPLES)]
        assert [len(own) for own in steps[0]] == [4, 6, 2]
        model, optimizer = build()
        for step in steps:
            optimizer.zero_grad()
            batch = collate([Texts()[index] for own in step for index in own])
            torch.autograd.backward(loss_of(model, batch, "samples"))
            optimizer.step()
        for by_case in results:
            torch.testing.assert_close(by_case[case][1], flat(model), rtol=1e-9, atol=1e-9)


def test_batches_are_fetched_by_other_processes() -> None:
    model, optimizer = build()
    with attach(model, optimizer, "sync", enabled=False) as pace:
        loader = pace.loader(Texts(), 12, collate_fn=collate, num_workers=2, shuffle=True, seed=3)
        found = [batch[2] for _ in range(EPOCHS) for batch in loader]
    assert found == whole_batches({"shuffle": True}, "samples")
    assert (loader.epoch, len(loader)) == (EPOCHS, 5)


def misuse(workers: Workers) -> list[str]:
    model, optimizer = build()
    pace = attach(model, optimizer, "sync", workers=workers)
    samples = Texts()
    parts: Any = torch.utils.data.DistributedSampler(samples, 2, workers.world.rank)
    said = []
    for arguments in (
        {"batch_size": 8, "sampler": parts},
        {"batch_size": 8, "max_batch": 3},
        {"batch_size": 8, "shares": [1, 2, 3]},
        {"batch_size": 8, "seed": workers.world.rank},
        {"batch_size": None},
        {"batch_size": 8, "lengths": [1, 2]},
    ):
        with pytest.raises(ValueError) as problem:
            pace.loader(samples, **arguments)
        said.append(str(problem.value))
    return said


def test_what_a_loader_refuses() -> None:
    for said in run_job(misuse, nodes=(2,)):
        parts = ("DistributedSampler", "add up to 6 samples", "each of the 2 workers")
        for text, part in zip(said, (*parts, "seed=1", "global batch", "53 samples"), strict=True):
            assert part in text


class Uneven:
    """A batch sampler whose batches have other sizes in every epoch; some are empty."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(20, generator=self._generator).tolist()
        yield []
        while order:
            count = int(torch.randint(1, 5, (), generator=self._generator))
            yield [order.pop() for _ in range(min(count, len(order)))]


def resume_uneven(workers: Workers, folder: str) -> list[list[int]]:
    """An epoch that is resumed by a sampler that would begin with another batch."""
    found: list[list[int]] = [[], []]
    for part in range(2):
        model, optimizer = build()
        pace = attach(model, optimizer, "sync", workers=workers)
        sampler = Uneven(part)
        loader = pace.loader(Texts(), batch_sampler=sampler, shares=[3, 1], collate_fn=collate)
        if part:
            pace.load(folder)
        for place, batch in enumerate(loader):
            counts = pace._replica.weight
            found[part] += batch[2] if counts is None or counts > 0 else []
            if not part and place == 2:
                pace.save(folder)
                break
        pace.detach()
    assert loader.epoch == 1
    return found


def test_uneven_batches_of_a_sampler_are_resumed(tmp_path: Path) -> None:
    results = run_job(resume_uneven, str(tmp_path), nodes=(2,))
    assert sorted(index for parts in results for part in parts for index in part) == [*range(20)]


def test_a_sampler_must_last_for_all_epochs() -> None:
    model, optimizer = build()
    pace = attach(model, optimizer, "sync", enabled=False)
    batches: Any = ([index] for index in range(4))
    with pytest.raises(ValueError, match="batch_sampler= can be iterated only once"):
        pace.loader(Texts(), batch_sampler=batches)
    with pytest.raises(ValueError, match="sampler= can be iterated only once"):
        pace.loader(Texts(), 4, sampler=iter(range(4)))
    nothing: list[list[int]] = []
    assert [*pace.loader(Texts(), batch_sampler=nothing)] == []


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(self.range)


def test_a_stream_that_tells_its_length_has_batches() -> None:
    model, optimizer = build()
    pace = attach(model, optimizer, "sync", enabled=False)
    for drop_last in (False, True):
        loader = pace.loader(SizedStream(0, 20), 8, collate_fn=collate, drop_last=drop_last)
        assert len(loader) == len(list(loader)) == 3 - drop_last
    with pytest.raises(TypeError, match="does not tell its length"):
        len(pace.loader(Stream(0, 20), 8))
