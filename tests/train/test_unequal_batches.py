"""Workers with unequal shares of a batch train as one process with the whole batch does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from jobs import make_reproducible, run_job
from paceline.strategies import strategy_names
from paceline.teams import Workers
from paceline.train import attach
from unequal import (
    BATCH,
    EPOCHS,
    LENGTHS,
    NUM_SAMPLES,
    Texts,
    average,
    build,
    collate,
    flat,
    loss_of,
    whole_batches,
    whole_batches_of,
)


def train(
    workers: Workers, strategy: str, options: dict[str, Any], unit: str, loading: dict[str, Any]
) -> tuple[torch.Tensor, list[list[int]]]:
    """The end, and the samples of every batch that counted for this worker."""
    kind, loading = loading.get("kind", "plain"), {k: v for k, v in loading.items() if k != "kind"}
    model, optimizer = build(kind)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pace = attach(model, optimizer, strategy, workers=workers, buffers="keep", **options)
    with pace:
        if unit == "tokens":
            loading = {"batch_size": 40, "lengths": LENGTHS} | loading
        elif "batch_sampler" not in loading:
            loading = {"batch_size": BATCH} | loading
        loader = pace.loader(Texts(), collate_fn=collate, seed=3, **loading)
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                torch.autograd.backward(loss_of(model, batch, unit))
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                counts = pace._replica.weight
                seen.append(batch[2] if counts is None or counts > 0 else [])
    return flat(model), seen


def train_all(workers: Workers, cases: Sequence[Any]) -> list[Any]:
    return [train(workers, *case) for case in cases]


def one_process(batches: Sequence[Sequence[int]], unit: str, kind: str) -> torch.Tensor:
    make_reproducible()
    model, optimizer = build(kind)
    for batch in batches:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model, collate([Texts()[index] for index in batch]), unit))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return flat(model)


def check(results: Sequence[Any], cases: Sequence[Any]) -> None:
    for place, (strategy, _, unit, loading) in enumerate(cases):
        title = f"{strategy} {unit} {loading}"
        batches = whole_batches(loading, unit)
        shared = [
            sorted(index for own in step for index in own)
            for step in zip(*(seen for _, seen in (by[place] for by in results)), strict=True)
        ]
        assert shared == [sorted(batch) for batch in batches], title
        expected = one_process(batches, unit, loading.get("kind", "plain"))
        for by_case in results:
            torch.testing.assert_close(by_case[place][0], expected, rtol=1e-9, atol=1e-9, msg=title)


UNEQUAL: dict[str, Any] = {"shares": [3, 1, 2]}
GLOBAL_CASES: list[Any] = [
    (strategy, options, unit, loading)
    for strategy, options in (
        ("sync", {}),
        ("sync-hierarchical", {}),
        ("post-local-sgd", {"sync_steps": 100}),
    )
    for unit, loading in (
        ("samples", UNEQUAL | {"shuffle": True}),
        ("samples", {"shares": [1, 0, 4], "drop_last": True}),  # a worker without a share
        ("samples", {"shares": [1, 5, 1], "shuffle": True, "kind": "synchronised"}),
        ("tokens", UNEQUAL | {"shuffle": True}),
    )
]


def test_gradients_are_those_of_one_process_with_the_whole_batch() -> None:
    check(run_job(train_all, GLOBAL_CASES, nodes=(2, 1)), GLOBAL_CASES)


# On one node, every strategy only averages gradients.
NODE_CASES: list[Any] = [
    (name, {}, unit, UNEQUAL | {"shuffle": True})
    for name in strategy_names()
    for unit in ("samples", "tokens")
]


def test_every_strategy_weights_the_gradients_inside_a_node() -> None:
    check(run_job(train_all, NODE_CASES, nodes=(3,)), NODE_CASES)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("local-sgd", {"period": 2}), ("daso", {"period": 2, "delay": 0, "warmup_steps": 0})],
)
def test_parameters_are_averaged_by_what_nodes_have_trained_on(
    strategy: str, options: dict[str, Any]
) -> None:
    """Nodes train on their shares, and count by them, also at the epoch's short end."""
    loading = {"shares": [3, 1, 2], "batch_size": 8}
    results = run_job(train, strategy, options, "samples", loading, nodes=(2, 1))
    models = [build() for _ in range(2)]
    trained = [0, 0]
    for step, batch in enumerate(whole_batches_of(8), start=1):
        for node, ranks in enumerate(((0, 1), (2,))):
            shares = paceline.share_batch(len(batch), [3.0, 1.0, 2.0])
            parts = torch.split(torch.tensor(batch), list(shares))
            own = torch.cat([parts[rank] for rank in ranks]).tolist()
            model, optimizer = models[node]
            optimizer.zero_grad()
            torch.autograd.backward(
                loss_of(model, collate([Texts()[index] for index in own]), "samples")
            )
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            trained[node] += len(own)
        if step % 2 == 0 or step == 2 * 7:
            average([model for model, _ in models], trained)
            trained = [0, 0]
    for end, _ in results:
        torch.testing.assert_close(end, flat(models[0][0]), rtol=1e-6, atol=1e-7)


def accumulate(workers: Workers) -> list[torch.Tensor]:
    """Two batches per step, by hand, with other weights in each; and the statistics of the norm."""
    counts = [[[2, 4], [3, 1]], [[0, 5], [4, 2]], [[3, 0], [0, 1]], [[1, 1], [2, 2]]]
    model, optimizer = build("normed")
    paceline.SyncBatchNorm.convert(model)
    rank, start = workers.world.rank, 0
    with attach(model, optimizer, "sync", workers=workers) as pace:
        for step in counts:
            optimizer.zero_grad()
            for place, sizes in enumerate(step):
                indices = list(range(start, start + sum(sizes)))
                own = indices[: sizes[0]] if rank == 0 else indices[sizes[0] :]
                start += sum(sizes)
                pace.weigh(sum(LENGTHS[index] for index in own))
                batch = collate([Texts()[index] for index in own or [50, 51]])
                if not own:
                    batch = (batch[0] * torch.nan, *batch[1:])  # counts nothing, whatever it is
                with pace.no_sync() if place == 0 else warnings.catch_warnings():
                    torch.autograd.backward(loss_of(model, batch, "tokens") / 2)
            optimizer.step()
    grads = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    return [flat(model), *grads]


def accumulate_with_loader(workers: Workers) -> torch.Tensor:
    """Three batches per step of a loader whose last batch is short: the last step follows it."""
    model, optimizer = build()
    with attach(model, optimizer, "sync", workers=workers) as pace:
        shares = [3, 1][: workers.world.size]
        loader = pace.loader(Texts(), BATCH, collate_fn=collate, shares=shares)
        with pace.no_sync():
            for place, batch in enumerate(loader, start=1):
                torch.autograd.backward(loss_of(model, batch, "samples") / 3)
                if place == 3:
                    optimizer.step()
                    optimizer.zero_grad()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_gradients_that_are_left_at_the_end_of_a_loop_keep_their_weights(num_workers: int) -> None:
    results = run_job(accumulate_with_loader, nodes=(num_workers,))
    make_reproducible()
    model, optimizer = build()
    for indices, count in ((range(36), 3), (range(36, NUM_SAMPLES), 2)):
        optimizer.zero_grad()
        batch = collate([Texts()[index] for index in indices])
        torch.autograd.backward(loss_of(model, batch, "samples") * count / 3)
        optimizer.step()
    for found in results:
        torch.testing.assert_close(found, flat(model), rtol=1e-9, atol=1e-9)


def test_accumulated_batches_count_by_their_own_weights() -> None:
    results = run_job(accumulate, nodes=(2,))
    make_reproducible()
    model, optimizer = build("normed")
    sizes = [6, 4, 5, 6, 3, 1, 2, 4]
    start = 0
    for place, size in enumerate(sizes):
        batch = collate([Texts()[index] for index in range(start, start + size)])
        start += size
        if place % 2 == 0:
            optimizer.zero_grad()
            pair_tokens = sum(LENGTHS[start - size : start + sizes[place + 1]])
        # The mean over all tokens of a step's batches.
        torch.autograd.backward(loss_of(model, batch, "tokens") * len(batch[0]) / pair_tokens)
        if place % 2:
            optimizer.step()
    for found in results:
        for own, first in zip(found, results[0], strict=True):
            assert torch.equal(own, first)
        torch.testing.assert_close(found[0], flat(model), rtol=1e-9, atol=1e-9)
