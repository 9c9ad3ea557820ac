"""Mistakes in strategies of one's own, named on every worker instead of a hang."""

from __future__ import annotations

import gc
import itertools
import warnings
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.strategies import Strategy
from paceline.teams import CollectiveName, Pending, TeamError, Workers, with_collective
from paceline.teams.workers import form_workers
from paceline.train import attach

ALGORITHMS: tuple[CollectiveName, ...] = ("tree", "ring", "auto")


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
        elif self.mistake == "op" and is_second:
            self.wait(world.all_reduce(numbers, "max"))
        elif self.mistake == "type" and is_second:
            self.wait(world.all_reduce(numbers.int()))
        elif self.mistake == "source":
            self.wait(world.broadcast(numbers, 1 if is_second else 0))
        elif self.mistake == "left out" and is_second:
            pass
        elif self.mistake == "wait":
            world.all_reduce(numbers)
        else:
            self.wait(world.all_reduce(numbers))


def make_mistake(
    workers: Workers,
    mistake: str,
    check: bool,
    collective: CollectiveName = "backend",
    trace: str | None = None,
) -> tuple[str, list[str]]:
    own = form_workers([[0, 1], [2]], timeout_s=6.0)
    model, optimizer = workloads.build("plain", "momentum")
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            strategy = Careless(mistake=mistake)
            settings: dict[str, Any] = {"collective": collective, "check": check, "trace": trace}
            if trace is not None:
                settings["trace_steps"] = (0, 3)
            with attach(model, optimizer, strategy, workers=own, **settings):
                for step in range(3):
                    optimizer.zero_grad()
                    torch.autograd.backward(workloads.batch_loss(model, step, own.world.rank))
                    optimizer.step()
        except TeamError as error:
            said = str(error)
        gc.collect()
    own.close()
    return said, [str(each.message) for each in caught]


def make_mistakes(workers: Workers, trace: str) -> list[tuple[str, list[str]]]:
    cases = [("size", True), ("none", True), ("wait", False), ("kind", False)]
    return [
        *(make_mistake(workers, *case) for case in cases),
        make_mistake(workers, "size", True, "tree"),
        make_mistake(workers, "kind", False, "tree"),
        *(make_mistake(workers, "wait", False, each) for each in ALGORITHMS),
        *(make_mistake(workers, "none", False, each) for each in ALGORITHMS),
        *(make_mistake(workers, "wait", False, each, trace) for each in ("backend", "ring")),
    ]


DETAILS = {
    "op": "all_reduce of 400 bytes (max, float32, at step 2)",
    "type": "all_reduce of 400 bytes (sum, int32, at step 2)",
    "source": "broadcast of 400 bytes (from 1, float32, at step 2)",
    "left out": "all_reduce of 400 bytes (sum, float32, at step 3)",
}
"""What the second worker begins, where only a detail differs."""


CARRIED: tuple[CollectiveName, ...] = ("backend", "tree")


def make_small_mistakes(workers: Workers) -> list[tuple[str, list[str]]]:
    return [
        make_mistake(workers, mistake, True, collective)
        for mistake, collective in itertools.product(DETAILS, CARRIED)
    ]


def test_a_check_compares_more_than_names_and_sizes() -> None:
    cases = list(itertools.product(DETAILS, CARRIED))
    for results in run_job(make_small_mistakes, nodes=(2, 1)):
        for (mistake, collective), (said, _) in zip(cases, results, strict=True):
            title = f"{mistake} {collective}: {said}"
            assert "disagree on operation" in said, title
            assert f"begins {DETAILS[mistake]}" in said, title


class Clumsy(Strategy):
    """Calls what there is in a way that it is not meant."""

    def __init__(self, *, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        wrong: Any = bucket
        return wrong if self.mistake == "bucket" else None

    def after_step(self) -> None:
        if self.mistake != "super":
            super().after_step()
        wrong: Any = "avg"
        world = self.workers.world
        if self.mistake == "op":
            self.wait(world.all_reduce(torch.ones(2), wrong))
        elif self.mistake == "rank":
            self.wait(world.broadcast(torch.ones(2), 17))
        elif self.mistake == "whole":
            self.wait(world.all_reduce(torch.ones(2, dtype=torch.int64), "mean"))
        elif self.mistake == "complex":
            self.wait(world.all_reduce(torch.ones(2, dtype=torch.complex64), "max"))
        elif self.mistake == "root":
            self.wait(world.reduce(torch.ones(2), -1))


CLUMSY = {
    "bucket": "Clumsy waits for Tensor, and not for what a team's all_reduce",
    "super": r"Clumsy.after_step\(\) has not counted the step; call super",
    "op": "op='avg' is not known; use 'sum', 'mean', 'max' or 'min'",
    "rank": "a team of 2 has no member 17; its ranks are 0 to 1",
    "whole": "whole numbers .torch.int64. have no mean",
    "complex": "complex numbers .torch.complex64. have no max",
    "root": "a team of 2 has no member -1",
}


def be_clumsy(workers: Workers, collective: CollectiveName) -> None:
    for mistake, sentence in CLUMSY.items():
        model, optimizer = workloads.build("plain", "momentum")
        pace = attach(
            model, optimizer, Clumsy(mistake=mistake), workers=workers, collective=collective
        )
        with pytest.raises(ValueError, match=sentence):
            torch.autograd.backward(workloads.batch_loss(model, 0, 0))
            optimizer.step()
        pace.detach()


@pytest.mark.parametrize("collective", CARRIED)
def test_wrong_arguments_are_refused_in_a_sentence(collective: CollectiveName) -> None:
    run_job(be_clumsy, collective, nodes=(2,))


@pytest.fixture(scope="module")
def by_worker(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[str, list[str]]]]:
    trace = str(tmp_path_factory.mktemp("mistakes") / "trace.json")
    results: list[list[tuple[str, list[str]]]] = run_job(make_mistakes, trace, nodes=(2, 1))
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
    for results, place in itertools.product(by_worker, (2, 6, 7, 8, 12, 13)):
        said, warned = results[place]
        assert said == ""
        assert [text for text in warned if "never waited for" in text] == [
            "all_reduce over the team world was begun and never waited for, so its tensor may be "
            "used before the result is there; keep what it returns and give it to self.wait()"
        ], place


def test_nobody_is_warned_who_waits(by_worker: list[list[tuple[str, list[str]]]]) -> None:
    for results, place in itertools.product(by_worker, (9, 10, 11)):
        assert results[place] == ("", []), place


def forget_in_the_background(workers: Workers) -> list[str]:
    own = form_workers([[0], [1]], timeout_s=6.0)
    trees = with_collective(own, "tree")
    across, tensor, kept = trees.background.across, torch.ones(100), list[Pending]()

    def work() -> None:
        across.all_reduce(tensor)
        kept.append(across.reduce(tensor, 0))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trees.background.run(work, device=torch.device("cpu")).wait()
        kept.pop().wait()
    trees.background.close_added()
    own.close()
    return [str(each.message) for each in caught]


def test_a_wait_that_never_happens_in_the_background_is_told() -> None:
    for warned in run_job(forget_in_the_background, nodes=(1, 1)):
        (text,) = warned
        assert text.startswith("all_reduce over the team ")
        assert "was begun and never waited for" in text
