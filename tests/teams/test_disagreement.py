"""Mistakes in strategies of one's own, named on every worker instead of a hang."""

from __future__ import annotations

import gc
import itertools
import warnings

import pytest
import torch

import workloads
from jobs import run_job
from paceline.strategies import Strategy
from paceline.teams import CollectiveName, TeamError, Workers
from paceline.teams.workers import form_workers
from paceline.train import attach


class Careless(Strategy):
    """At the second step the second worker does what the others do not; nobody ever waits."""

    def __init__(self, *, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def after_step(self) -> None:
        super().after_step()
        world = self.workers.world
        numbers = torch.ones(100)
        self.wait(world.all_reduce(numbers))
        if self.step != 2:
            return
        is_second = world.rank == 1
        if self.mistake == "kind" and is_second:
            self.wait(world.broadcast(numbers, 0))
        elif self.mistake == "size" and is_second:
            self.wait(world.all_reduce(numbers[:10]))
        elif self.mistake == "wait":
            world.all_reduce(numbers)
        else:
            self.wait(world.all_reduce(numbers))


def make_mistake(
    workers: Workers, mistake: str, check: bool, collective: CollectiveName = "backend"
) -> tuple[str, list[str]]:
    own = form_workers([[0, 1], [2]], timeout_s=6.0)
    model, optimizer = workloads.build("plain", "momentum")
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            strategy = Careless(mistake=mistake)
            with attach(
                model, optimizer, strategy, workers=own, check=check, collective=collective
            ):
                for step in range(3):
                    optimizer.zero_grad()
                    torch.autograd.backward(workloads.batch_loss(model, step, own.world.rank))
                    optimizer.step()
        except TeamError as error:
            said = str(error)
        gc.collect()
    own.close()
    return said, [str(each.message) for each in caught]


def make_mistakes(workers: Workers) -> list[tuple[str, list[str]]]:
    cases = [("size", True), ("none", True), ("wait", False), ("kind", False)]
    return [
        *(make_mistake(workers, *case) for case in cases),
        make_mistake(workers, "size", True, "tree"),
        make_mistake(workers, "kind", False, "tree"),
    ]


@pytest.fixture(scope="module")
def by_worker() -> list[list[tuple[str, list[str]]]]:
    results: list[list[tuple[str, list[str]]]] = run_job(make_mistakes, nodes=(2, 1))
    return results


def test_a_check_names_the_first_difference(by_worker: list[list[tuple[str, list[str]]]]) -> None:
    for results, place in itertools.product(by_worker, (0, 4)):
        said, _ = results[place]
        assert "disagree on operation" in said
        assert "of the team world, at step 2" in said
        assert "workers 0 and 2 on node 0" in said
        assert "begins all_reduce of 400 bytes and worker 1 on node 0" in said
        assert "begins all_reduce of 40 bytes; all workers must make the same calls" in said
        assert results[1] == ("", []), "and finds nothing where there is nothing"


def test_without_a_check_those_who_wait_compare(
    by_worker: list[list[tuple[str, list[str]]]],
) -> None:
    for results, place in itertools.product(by_worker, (3, 5)):
        said, _ = results[place]
        assert "of the team world, at step 2" in said
        assert "begins all_reduce of 400 bytes and worker 1 on node 0" in said
        assert "begins broadcast of 400 bytes; all workers must make the same calls" in said


def test_a_wait_that_never_happens_is_told(by_worker: list[list[tuple[str, list[str]]]]) -> None:
    for results in by_worker:
        said, warned = results[2]
        assert said == ""
        assert [text for text in warned if "never waited for" in text] == [
            "all_reduce over the team world was begun and never waited for, so its tensor may be "
            "used before the result is there; keep what it returns and give it to self.wait()"
        ]
