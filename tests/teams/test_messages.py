"""Collectives as messages, on real workers: the same bits everywhere and in every run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import workloads
from jobs import make_reproducible, run_job
from paceline.cluster import load_cluster
from paceline.rehearse import predict
from paceline.steps import Step
from paceline.teams import CollectiveName, Workers, with_collective
from paceline.train import attach

NODES = (2, 2, 1)
NUM_WORKERS = sum(NODES)
SIZES = (1, 3, 1000)
ALGORITHMS: tuple[CollectiveName, ...] = ("tree", "ring", "auto")


def values_of(rank: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17 * rank + size)
    return torch.randn(size, generator=generator) * 10.0 ** (rank - 2)


def communicate(workers: Workers, collective: CollectiveName) -> list[torch.Tensor]:
    own = with_collective(workers, collective)
    world, rank, results = own.world, own.world.rank, []
    for size in SIZES:
        begun = []
        for op in ("sum", "mean", "max", "min"):
            tensor = values_of(rank, size)
            begun.append((world.all_reduce(tensor, op), tensor))
        # A message between two of them, while all of that is under way.
        note = torch.full((2,), float(rank))
        if rank == 4:
            world.send(note, 1).wait()
        elif rank == 1:
            world.receive(note, 4).wait()
            assert note.tolist() == [4.0, 4.0]
        for pending, tensor in begun:
            pending.wait()
            assert pending.done()
            results.append(tensor)
        told = values_of(rank, size)
        world.broadcast(told, 3).wait()
        assert torch.equal(told, values_of(3, size))
        results.append(told)
        reduced = values_of(rank, size)
        world.reduce(reduced, 2, "sum").wait()
        results.append(reduced if rank == 2 else torch.zeros(size))
    columns = torch.arange(12.0).view(3, 4).add_(rank).T  # not contiguous
    world.all_reduce(columns, "sum").wait()
    results.append(columns)
    counts = torch.tensor([rank, 7])
    own.node.all_reduce(counts, "sum").wait()
    assert counts.tolist() == [sum(workers.ranks_by_node[workers.node_index]), 7 * own.node.size]
    own.background.close_added()
    return results


def check_all(workers: Workers) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], list[str]]:
    found = [communicate(workers, each) for each in ALGORITHMS for _ in range(2)]
    ends = []
    for strategy in ("sync", "sync-hierarchical", "local-sgd"):
        for collective in ("backend", "tree", "ring"):
            model, optimizer = workloads.build("normed", "momentum")
            settings: dict[str, Any] = {"collective": collective, "workers": workers}
            with attach(model, optimizer, strategy, **settings):
                for step in range(8):
                    optimizer.zero_grad()
                    torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
                    optimizer.step()
            ends.append(workloads.flat_state(model))
    return found, ends, [thread.name for thread in threading.enumerate()]


def tree_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    """In the documented order: neighbours first, then neighbours of neighbours."""
    while len(parts) > 1:
        parts = [
            parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0]


def test_all_algorithms_on_real_workers() -> None:
    by_worker = run_job(check_all, nodes=NODES)
    make_reproducible()
    per_size = 6
    for place, algorithm in enumerate(ALGORITHMS):
        first, second = ([found[2 * place + i] for found, _, _ in by_worker] for i in range(2))
        for number, size in enumerate(SIZES):
            inputs = [values_of(rank, size) for rank in range(NUM_WORKERS)]
            expected = [
                torch.stack(inputs).double().sum(0).float(),
                torch.stack(inputs).double().mean(0).float(),
                torch.stack(inputs).amax(0),
                torch.stack(inputs).amin(0),
            ]
            for kind, wanted in enumerate(expected):
                index = per_size * number + kind
                got = [results[index] for results in first]
                torch.testing.assert_close(got[0], wanted, rtol=1e-5, atol=1e-5)
                again = [results[index] for results in second]
                for run in (got, again):
                    assert all(torch.equal(result, run[0]) for result in run), algorithm
                # What is faster may change from run to run.
                assert algorithm == "auto" or torch.equal(got[0], again[0])
            if algorithm == "tree":
                assert torch.equal(first[0][per_size * number], tree_sum(inputs))
                from_two = tree_sum([inputs[(2 + i) % NUM_WORKERS] for i in range(NUM_WORKERS)])
                assert torch.equal(first[2][per_size * number + 5], from_two)
        columns = first[0][-1]
        assert torch.equal(columns, NUM_WORKERS * torch.arange(12.0).view(3, 4).T + 10)
    for case in range(9):
        ends = [own[case] for _, own, _ in by_worker]
        assert all(torch.equal(end, ends[0]) for end in ends)
        backend = by_worker[0][1][case - case % 3]
        torch.testing.assert_close(ends[0], backend, rtol=1e-5, atol=1e-6)
    assert not any("background_1" in name for _, _, names in by_worker for name in names)


KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "empty": lambda rank: torch.zeros(0),
    "scalar": lambda rank: torch.tensor(rank + 0.5),
    "integers": lambda rank: torch.arange(5) * (rank - 1),
    "fewer than workers": lambda rank: torch.tensor([2.0, 3.0]) ** rank,
    "with gaps": lambda rank: (torch.arange(24.0).view(4, 6) * (rank + 1))[:, ::2],
}


def combine(workers: Workers) -> dict[tuple[str, str, str], torch.Tensor]:
    found: dict[tuple[str, str, str], torch.Tensor] = {}
    names: tuple[CollectiveName, ...] = ("backend", *ALGORITHMS)
    for collective in names:
        own = with_collective(workers, collective)
        for kind, make in KINDS.items():
            for op in ("sum", "max", "min"):
                tensor = make(workers.world.rank)
                own.world.all_reduce(tensor, op).wait()
                found[collective, kind, op] = tensor
        told = KINDS["with gaps"](workers.world.rank)
        own.world.broadcast(told, 1).wait()
        assert torch.equal(told, KINDS["with gaps"](1))
        own.background.close_added()
    return found


@pytest.mark.parametrize("num_workers", [3, 7])
def test_odd_tensors_and_odd_teams(num_workers: int) -> None:
    results = run_job(combine, nodes=(num_workers,))
    for (collective, kind, op), found in results[0].items():
        case = f"{collective} {kind} {op}"
        every = torch.stack([KINDS[kind](rank) for rank in range(num_workers)])
        expected = every[0]
        if every.numel():
            values = {"sum": every.sum(0), "max": every.amax(0), "min": every.amin(0)}
            expected = values[op]
        torch.testing.assert_close(found, expected, msg=case)
        assert all(torch.equal(own[collective, kind, op], found) for own in results), case


def test_unknown_algorithms_are_refused() -> None:
    model, optimizer = workloads.build("plain", "momentum")
    with pytest.raises(ValueError, match="collective='trie' is not known; use one of 'backend', "):
        attach(model, optimizer, "sync", collective="trie")  # type: ignore[arg-type]


def test_trees_are_rehearsed() -> None:
    """Of a few bytes, a tree of eight takes six messages behind one another, a ring fourteen."""
    step = Step(model=torch.nn.Linear(8, 4), inputs=torch.randn(2, 8), loss=lambda y, _: y.sum())
    cluster = load_cluster("lab-2x2").with_nodes(8).with_workers_per_node(1)
    names: tuple[CollectiveName, ...] = ("backend", "tree", "ring", "auto")
    found = {name: predict(step, cluster=cluster, collective=name) for name in names}
    # Each message is the latency and its bytes; the calls around them take a tenth more.
    link, num_bytes = cluster.node_kinds[0].between, 4 * (8 * 4 + 4 + 3)
    whole_s = link.latency_s + num_bytes / link.bandwidth_bytes_per_s
    part_s = link.latency_s + num_bytes / 8 / link.bandwidth_bytes_per_s
    assert found["tree"].exposed_communication_s == pytest.approx(6 * whole_s, rel=0.15)
    assert found["ring"].exposed_communication_s == pytest.approx(14 * part_s, rel=0.15)
    assert found["auto"].step_s == min(found["tree"].step_s, found["backend"].step_s)
