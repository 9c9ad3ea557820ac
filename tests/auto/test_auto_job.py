"""Auto in real jobs: it measures, decides, swaps, is saved and goes on; all workers agree."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.auto.auto import Auto
from paceline.auto.candidates import Candidate
from paceline.auto.measuring import NUM_STEPS
from paceline.teams import Workers
from paceline.traces import read_trace
from paceline.train import Pace, attach

LAST = NUM_STEPS + 11  # between two exchanges
# No look at the steps in between: timing could then change the choice.
COMMON: dict[str, Any] = {"max_period": 4, "wires": "fp32", "check_every": 10**6}
CASES: list[tuple[dict[str, Any], int]] = [
    # Saved after the decision, while an exchange is under way, and in the middle of measuring.
    ({"allow": "daso"}, NUM_STEPS + 5),
    ({"allow": "local-sgd"}, 7),
]


def train(model: Any, optimizer: Any, workers: Workers, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
        optimizer.step()


def everything(model: Any, optimizer: Any) -> list[torch.Tensor]:
    kept = [
        value.detach().cpu().clone()
        for state in optimizer.state.values()
        for value in state.values()
    ]
    return [workloads.flat_state(model), *kept]


def auto_of(pace: Pace) -> Auto:
    assert isinstance(pace.strategy, Auto)
    return pace.strategy


def with_own_clock(workers: Workers) -> Workers:
    """Every worker's seconds are of another length."""
    factor = 1.0 + workers.world.rank
    return dataclasses.replace(workers, clock=lambda: factor * time.perf_counter())


def run_whole(workers: Workers, folder: str) -> list[Any]:
    """Train to the end; save on the way, and let another strategy train at last."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("paceline").addHandler(handler)
    logging.getLogger("paceline").setLevel(logging.INFO)
    own = with_own_clock(workers)
    results = []
    for index, (options, saved_after) in enumerate(CASES):
        model, optimizer = workloads.build("wide", "adamw")
        trace = Path(folder, f"{index}.json")
        with attach(
            model, optimizer, "auto", workers=own, trace=trace, **COMMON, **options
        ) as pace:
            train(model, optimizer, workers, range(1, saved_after + 1))
            pace.save(Path(folder, str(index)))
            train(model, optimizer, workers, range(saved_after + 1, LAST + 1))
            auto, end = auto_of(pace), everything(model, optimizer)
            choice, decisions = str(auto.current), list(auto.decisions)
            with torch.no_grad():
                auto._swap(Candidate("sync"))
            apart = []
            for step in range(3):
                train(model, optimizer, workers, range(LAST + 1 + step, LAST + 2 + step))
                apart.append(everything(model, optimizer))
        status = pace.stats.status
        results.append(
            {"end": end, "choice": choice, "decisions": decisions, "synchronous": apart,
             "status": status, "logged": list(lines)}
        )  # fmt: skip
        lines.clear()
    return results


def run_resumed(workers: Workers, folder: str) -> list[Any]:
    results = []
    for index, (options, saved_after) in enumerate(CASES):
        # New processes start elsewhere, and get all from the checkpoint.
        model, optimizer = workloads.build("wide", "adamw", seed=7)
        pace = attach(model, optimizer, "auto", workers=workers, **COMMON, **options)
        pace.load(Path(folder, str(index)))
        at_load = str(auto_of(pace).current)
        train(model, optimizer, workers, range(saved_after + 1, LAST + 1))
        results.append((everything(model, optimizer), at_load, str(auto_of(pace).current)))
        pace.detach()
    return results


def test_auto_decides_swaps_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = run_job(run_whole, str(tmp_path))
    resumed = run_job(run_resumed, str(tmp_path))
    for case in range(len(CASES)):
        first = whole[0][case]
        assert first["choice"].startswith(CASES[case][0]["allow"])
        assert len(first["decisions"]) == 1
        assert first["decisions"][0].startswith(f"auto, step {NUM_STEPS}: {first['choice']} takes ")
        assert first["logged"] == first["decisions"]
        spans, _ = read_trace(tmp_path / f"{case}.json")
        remarks = [span.name for span in spans if span.name.startswith("auto")]
        assert remarks == first["decisions"] * 4  # on every worker
        assert first["status"]["choice"] == 0  # sync, at last
        for rank, (results, again) in enumerate(zip(whole, resumed, strict=True)):
            own = results[case]
            # Every worker's clock was another, and all chose the same.
            assert (own["choice"], own["decisions"]) == (first["choice"], first["decisions"])
            assert own["logged"] == [] or rank == 0
            end, at_load, choice = again[case]
            assert choice == own["choice"]
            assert at_load == (own["choice"] if CASES[case][1] > NUM_STEPS else "sync")
            assert all(torch.equal(a, b) for a, b in zip(end, own["end"], strict=True))
            # Nodes had trained on their own; under sync all stay equal, momenta too.
            for mine, theirs in zip(own["synchronous"], first["synchronous"], strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert not torch.equal(whole[0][case]["end"][0], whole[2][case]["end"][0])


def fail_to_plan(workers: Workers) -> tuple[str, list[str]]:
    """The first worker cannot plan: nobody waits for ever, and all go on as before."""
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "auto", workers=workers) as pace:
        if workers.world.rank == 0:
            auto_of(pace)._forecasts = None  # type: ignore[method-assign, assignment]
        with pytest.warns(RuntimeWarning, match="auto could not choose and goes on with sync"):
            train(model, optimizer, workers, range(NUM_STEPS))
        return str(auto_of(pace).current), auto_of(pace).decisions


def test_a_plan_that_fails_leaves_training_as_it_is() -> None:
    assert run_job(fail_to_plan, nodes=(1, 1)) == [("sync", [])] * 2
