"""An exchange that has not arrived after W steps: training goes on, and the merge knows."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach

PERIOD = 10
NUM_STEPS = 2 * PERIOD


def slope(rank: int) -> float:
    # Irregular, so that no merge happens to leave a node where it is.
    return 0.37 + rank**2


class Gate:
    """Holds a worker's background work from a call of ``close`` to one of ``open``."""

    def __init__(self, workers: Workers) -> None:
        self._background = workers.background
        self._opened = threading.Event()

    def close(self) -> None:
        def hold() -> None:
            self._opened.wait()

        self._background.run(hold, device=torch.device("cpu"))

    def open(self) -> None:
        self._opened.set()

    def settle(self) -> None:
        """Wait until all background work asked for so far is done."""
        self._background.run(lambda: None, device=DEVICE).wait()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()


def train(workers: Workers, merge: str, open_after: dict[int, int], **options: Any) -> list[float]:
    """This worker's values by step, its first exchange held until after the step it is told.

    Without a step it is let go while the next exchange already waits for it.
    """
    rank = workers.world.rank
    model, optimizer = workloads.build_drift()
    options = {"period": PERIOD, "delay": 1, "warmup_steps": 0} | options
    pace = attach(model, optimizer, "daso", workers=workers, merge=merge, **options)
    gate = Gate(workers)
    gate.close()
    values = []
    for step in range(1, NUM_STEPS + 1):
        if rank not in open_after and step == 2 * PERIOD:
            threading.Timer(0.05, gate.open).start()
        optimizer.zero_grad()
        torch.autograd.backward(model(slope(rank)))
        optimizer.step()
        values.append(model.values.item())
        # Together, so that what a step sees depends on the gates alone: nobody opens one while
        # another worker is still at its step.
        workers.world.agree(0.0)
        if step == open_after.get(rank):
            gate.open()
        if step == max(open_after.values(), default=0):
            gate.settle()
        workers.world.agree(0.0)
    pace.detach()
    return values


def merge_steps(values: list[float], own_slope: float) -> list[int]:
    """The steps at which more happened than the worker's own gradient."""
    before = [0.0, *values]
    return [
        step
        for step in range(1, len(before))
        if before[step] - before[step - 1] != pytest.approx(own_slope, abs=1e-4)
    ]


def node_slopes(nodes: tuple[int, ...]) -> list[float]:
    """What each node moves by at a step: its workers' mean."""
    ranks = iter(range(sum(nodes)))
    return [sum(slope(next(ranks)) for _ in range(size)) / size for size in nodes]


def merged(merge: str, slopes: list[float], own: float, waited: int) -> float:
    """The value after a merge, from the formulas: all nodes sent after PERIOD steps."""
    sent = [PERIOD * s for s in slopes]
    num_nodes = len(slopes)
    now = (PERIOD + waited) * own
    if merge == "stale":
        return (2 * waited * now + sum(sent)) / (2 * waited + num_nodes)
    return sum(sent) / num_nodes + (now - PERIOD * own)


@pytest.mark.parametrize("merge", ["stale", "corrected"])
@pytest.mark.parametrize("nodes", [(1, 1), (2, 2), (1, 1, 1)])
def test_a_late_arrival_is_merged_with_the_steps_that_really_passed(
    nodes: tuple[int, ...], merge: str
) -> None:
    # Held on the first node, it arrives nowhere before that one lets go.
    ranks = range(sum(nodes))
    open_after = dict.fromkeys(ranks, 1) | {0: PERIOD + 5}
    by_worker = run_job(train, merge, open_after, nodes=nodes)
    slopes = node_slopes(nodes)
    for rank in ranks:
        own = slopes[[node for node, size in enumerate(nodes) for _ in range(size)][rank]]
        step = merge_steps(by_worker[rank], own)[0]
        assert step == PERIOD + 6
        assert by_worker[rank][step - 1] == pytest.approx(merged(merge, slopes, own, 6), rel=1e-5)


@pytest.mark.parametrize("merge", ["stale", "corrected"])
def test_an_exchange_is_merged_before_the_next_one_starts(merge: str) -> None:
    nodes = (1, 1)
    by_worker = run_job(train, merge, {}, nodes=nodes)
    slopes = node_slopes(nodes)
    for values, own in zip(by_worker, slopes, strict=True):
        assert merge_steps(values, own)[0] == 2 * PERIOD
        expected = merged(merge, slopes, own, PERIOD)
        assert values[2 * PERIOD - 1] == pytest.approx(expected, rel=1e-5)


def test_the_workers_of_a_node_merge_at_the_same_step() -> None:
    # The second worker of the first node gets the result last; the second node need not wait.
    nodes = (2, 2)
    open_after = {0: 1, 1: PERIOD + 4, 2: 1, 3: 1}
    by_worker = run_job(train, "corrected", open_after, nodes=nodes)
    slopes = node_slopes(nodes)
    assert by_worker[0] == by_worker[1]
    assert by_worker[2] == by_worker[3]
    for rank, own in ((0, slopes[0]), (2, slopes[1])):
        step = merge_steps(by_worker[rank], own)[0]
        expected = merged("corrected", slopes, own, step - PERIOD)
        assert by_worker[rank][step - 1] == pytest.approx(expected, rel=1e-5)
    assert merge_steps(by_worker[0], slopes[0])[0] == PERIOD + 5
    assert merge_steps(by_worker[2], slopes[1])[0] <= PERIOD + 5


def train_slowly(workers: Workers, merge: str) -> list[float]:
    """A thousand values at a rate that makes each exchange take two fifths of a second."""
    model, optimizer = workloads.build_drift(1000)
    pace = attach(
        model,
        optimizer,
        "daso",
        workers=workers,
        merge=merge,
        period=PERIOD,
        delay=1,
        warmup_steps=0,
        chunk_bytes=400,
        rate_bytes_per_s=10_000,
    )
    values = []
    for _ in range(2 * PERIOD + 2):
        optimizer.zero_grad()
        torch.autograd.backward(model(slope(workers.world.rank)))
        optimizer.step()
        values.append(model.values.detach().cpu().clone())
    pace.detach()
    for value in values:
        assert torch.equal(value, value[:1].expand_as(value))
    return [value[0].item() for value in values]


@pytest.mark.parametrize("merge", ["stale", "corrected"])
def test_a_paced_exchange_is_merged_by_the_formula_whenever_it_arrives(merge: str) -> None:
    slopes = node_slopes((1, 1))
    for values, own in zip(run_job(train_slowly, merge, nodes=(1, 1)), slopes, strict=True):
        step = merge_steps(values, own)[0]
        assert PERIOD < step <= 2 * PERIOD
        expected = merged(merge, slopes, own, step - PERIOD)
        assert values[step - 1] == pytest.approx(expected, rel=1e-5)
