"""Loops that take batches of one loader between taking and training on another one's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from jobs import DEVICE, make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import attach
from paceline.train.pace import Pace
from unequal import BATCH, NUM_SAMPLES, Texts, build, collate, flat, loss_of, whole_batches_of

SHARES = [4, 1]


def evaluate(pace: Pace, model: nn.Module, *, is_graded: bool) -> int:
    """Look at all samples; how many of them this worker has."""
    loader = pace.loader(Texts(), 10, seed=7, shares=[1, 5], collate_fn=collate)
    num_own = 0
    model.eval()
    with torch.set_grad_enabled(is_graded):
        for batch in loader:
            loss_of(model, batch, "samples")
            num_own += 0 if loader.is_filler else len(batch[2])
    model.train()
    return num_own


def train(workers: Workers, moment: str, num_accumulated: int, kind: str) -> torch.Tensor:
    model, optimizer = build(kind)
    counts = []
    with attach(model, optimizer, "sync", workers=workers, buffers="keep") as pace:
        loader = pace.loader(Texts(), BATCH, shares=SHARES, collate_fn=collate)
        for _ in range(2):
            optimizer.zero_grad()
            for place, batch in enumerate(loader, 1):
                if moment == "step" and place % num_accumulated == 1:
                    optimizer.step()
                    optimizer.zero_grad()
                if moment in ("taken", "graded"):
                    counts.append(evaluate(pace, model, is_graded=moment == "graded"))
                loss = loss_of(model, batch, "samples")
                if moment == "forward":
                    counts.append(evaluate(pace, model, is_graded=False))
                with pace.no_sync():
                    torch.autograd.backward(loss)
                if moment == "backward":
                    counts.append(evaluate(pace, model, is_graded=True))
                if moment != "step" and place % num_accumulated in (0, len(loader)):
                    optimizer.step()
                    optimizer.zero_grad()
            optimizer.step()
    assert all(workers.world.agree(count, "sum") == NUM_SAMPLES for count in counts)
    return flat(model)


def train_all(workers: Workers, cases: Sequence[Any]) -> list[torch.Tensor]:
    return [train(workers, *case) for case in cases]


def one_process(num_accumulated: int, kind: str) -> torch.Tensor:
    make_reproducible()
    model, optimizer = build(kind)
    batches = whole_batches_of(BATCH)
    for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
        for start in range(0, len(epoch), num_accumulated):
            step = epoch[start : start + num_accumulated]
            total = sum(len(batch) for batch in step)
            optimizer.zero_grad()
            for indices in step:
                loss = loss_of(model, collate([Texts()[index] for index in indices]), "samples")
                (loss * len(indices) * len(step) / total).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return flat(model)


CASES = [
    (moment, num_accumulated, kind)
    for moment in ("taken", "graded", "forward", "backward", "step")
    for num_accumulated in (1, 2)
    for kind in ("plain", "synchronised")
    if (moment, num_accumulated) != ("step", 1)
]


def test_a_batch_counts_the_same_whatever_is_done_before_it_is_trained_on() -> None:
    results = run_job(train_all, CASES, nodes=(2,))
    for place, (_, num_accumulated, kind) in enumerate(CASES):
        expected = one_process(num_accumulated, kind)
        for by_case in results:
            torch.testing.assert_close(
                by_case[place], expected, rtol=1e-9, atol=1e-9, msg=str(CASES[place])
            )


def train_weighed(workers: Workers) -> torch.Tensor:
    model, optimizer = build()
    rank = workers.world.rank
    with attach(model, optimizer, "sync", workers=workers) as pace:
        for indices in whole_batches_of(BATCH):
            own = indices[:3] if rank == 0 else indices[3:]
            pace.weigh(len(own))
            evaluate(pace, model, is_graded=True)
            optimizer.zero_grad()
            batch = collate([Texts()[index] for index in own])
            torch.autograd.backward(loss_of(model, batch, "samples"))
            optimizer.step()
    return flat(model)


def test_a_weighed_batch_counts_the_same_after_an_evaluation() -> None:
    for own in run_job(train_weighed, nodes=(2,)):
        torch.testing.assert_close(own, one_process(1, "plain"), rtol=1e-9, atol=1e-9)


def train_with_empty_shares(workers: Workers) -> list[torch.Tensor]:
    """Statistics of batch norm before and after a batch that counts nothing, not exchanged."""
    model, optimizer = build("local")
    pace = attach(model, optimizer, "sync", workers=workers)
    loader = pace.loader(Texts(), 8, shares=[1, 0], collate_fn=collate)
    found = []
    norm = model.get_submodule("1")
    for place, batch in enumerate(loader):
        found.append(norm.running_mean.clone())  # type: ignore[operator]
        if place == 2:
            break
        with pace.no_sync():
            torch.autograd.backward(loss_of(model, batch, "samples"))
    pace.detach()
    return found


def test_a_batch_that_counts_nothing_leaves_no_statistics_if_gradients_add_up() -> None:
    trained, idle = run_job(train_with_empty_shares, nodes=(2,))
    assert not torch.equal(trained[1], trained[0])
    assert torch.equal(idle[0], idle[2])


def ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """One batch is taken before the one before it is given."""
    before = None
    for batch in batches:
        if before is not None:
            yield before
        before = batch
    yield before


def train_oddly(workers: Workers, way: str) -> list[str]:
    model = nn.Linear(4, 1).double().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pace = attach(model, optimizer, "sync", workers=workers)
    loader = pace.loader(Texts(), BATCH, shares=SHARES, collate_fn=collate)
    other = pace.loader(Texts(), 10, shares=[1, 5], collate_fn=collate)
    ways: dict[str, Callable[[], Any]] = {
        "zip": lambda: (both[0] for both in zip(loader, other, strict=False)),
        "ahead": lambda: ahead(loader),
        "list": lambda: list(loader),
        "first": lambda: [next(iter(loader))],
        "usual": lambda: loader,
        "looked at": lambda: (next(iter(other)), loader)[1],
    }
    batches = ways[way]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, batch, "samples"))
            optimizer.step()
    pace.detach()
    return [str(each.message) for each in caught if "batch" in str(each.message)]


def train_in_all_ways(workers: Workers, ways: Sequence[str]) -> list[list[str]]:
    return [train_oddly(workers, way) for way in ways]


WAYS = {
    "zip": "two loaders",
    "ahead": "before the next one is taken",
    "list": "before the next one is taken",
    "first": "before the next one is taken",
    "usual": None,
    "looked at": None,
}


def test_batches_that_are_trained_on_later_are_warned_of() -> None:
    for found in run_job(train_in_all_ways, list(WAYS), nodes=(2,)):
        for warned, (way, part) in zip(found, WAYS.items(), strict=True):
            if part is None:
                assert warned == [], way
            else:
                assert warned and all(part in each for each in warned), (way, warned)
