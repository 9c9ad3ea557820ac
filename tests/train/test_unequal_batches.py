"""Workers with unequal shares of a batch train as one process with the whole batch does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import paceline
from jobs import DEVICE, make_reproducible, run_job
from paceline.strategies import strategy_names
from paceline.teams import Workers
from paceline.train import attach

NUM_SAMPLES, BATCH, EPOCHS = 53, 12, 2
LENGTHS = [1 + (7 * index) % 5 for index in range(NUM_SAMPLES)]


class Texts(Dataset[Any]):
    """Sequences of unequal lengths, and a target for each token; a sample tells its index."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randn(LENGTHS[index], 4, generator=generator, dtype=torch.float64)
        return tokens + 0.1 * index, tokens.sum(-1, keepdim=True).sin(), index


def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    inputs, targets, indices = zip(*samples, strict=True)
    return torch.cat(inputs), torch.cat(targets), list(indices)


def build(kind: str = "plain") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    norm: list[nn.Module] = [] if kind == "plain" else [nn.BatchNorm1d(5)]
    model = nn.Sequential(nn.Linear(4, 5), *norm, nn.Tanh(), nn.Linear(5, 1)).double().to(DEVICE)
    if kind == "synchronised":
        paceline.SyncBatchNorm.convert(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, batch: Any, unit: str) -> torch.Tensor:
    """The mean over tokens, or over samples of their tokens' means."""
    inputs, targets, indices = batch
    errors: torch.Tensor = (model(inputs.to(DEVICE)) - targets.to(DEVICE)).square().mean(-1)
    if unit == "tokens":
        return errors.mean()
    parts = torch.split(errors, [LENGTHS[index] for index in indices])
    return torch.stack([part.mean() for part in parts]).mean()


def flat(model: nn.Module) -> torch.Tensor:
    tensors = [t.detach().flatten().double().cpu() for t in model.state_dict().values()]
    return torch.cat(tensors)


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


def whole_batches(loading: dict[str, Any], unit: str) -> list[list[int]]:
    """The global batches of all epochs, as torch's own tools make them."""
    found = []
    for epoch in range(EPOCHS):
        order = list(range(NUM_SAMPLES))
        if loading.get("shuffle"):
            order = torch.randperm(
                NUM_SAMPLES, generator=torch.Generator().manual_seed(3 + epoch)
            ).tolist()
        batch: list[int] = []
        for index in order:
            tokens = sum(LENGTHS[i] for i in [*batch, index])
            if tokens > 40 if unit == "tokens" else len(batch) == BATCH:
                found.append(batch)
                batch = []
            batch = [*batch, index]
        if not loading.get("drop_last"):
            found.append(batch)
    return found


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


def whole_batches_of(size: int) -> list[list[int]]:
    own = [list(range(i, min(i + size, NUM_SAMPLES))) for i in range(0, NUM_SAMPLES, size)]
    return own * EPOCHS


@torch.no_grad()
def average(models: Sequence[nn.Module], weights: Sequence[int]) -> None:
    for tensors in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(w * t for w, t in zip(weights, tensors, strict=True)) / sum(weights)
        for tensor in tensors:
            tensor.copy_(mean)


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
        loader = pace.loader(Texts(), BATCH, collate_fn=collate, shares=[3, 1])
        with pace.no_sync():
            for place, batch in enumerate(loader, start=1):
                torch.autograd.backward(loss_of(model, batch, "samples") / 3)
                if place == 3:
                    optimizer.step()
                    optimizer.zero_grad()
        optimizer.step()
    return flat(model)


def test_gradients_that_are_left_at_the_end_of_a_loop_keep_their_weights() -> None:
    results = run_job(accumulate_with_loader, nodes=(2,))
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
