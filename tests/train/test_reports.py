"""What a run tells: metrics to the strategy, numbers to TensorBoard and to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import DEVICE, run_job
from paceline.strategies import Strategy
from paceline.teams import Workers
from paceline.train import Stats, attach
from paceline.train.stats import WINDOW, StepTimes


class Listening(Strategy):
    """Remembers what it was told, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[int, float]] = []

    def report(self, metric: float) -> None:
        self.heard.append((self.step, metric))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, rank))
        optimizer.step()


def report_by_hand(workers: Workers) -> list[tuple[int, float]]:
    model, optimizer = workloads.build("plain", "momentum")
    strategy = Listening()
    with attach(model, optimizer, strategy, workers=workers) as pace:
        train(model, optimizer, workers.world.rank, 2)
        pace.report(float(workers.world.rank))
        pace.report(torch.tensor(10.0 * workers.world.rank, device=DEVICE, requires_grad=True))
        train(model, optimizer, workers.world.rank, 1)
        pace.report(2.5)
    return strategy.heard


def test_reports_are_averaged_over_all_workers() -> None:
    for heard in run_job(report_by_hand, nodes=(2, 1)):
        assert heard == [(2, pytest.approx(1.0)), (2, pytest.approx(10.0)), (3, 2.5)]


def report_by_metric(workers: Workers, every: int | None) -> tuple[list[tuple[int, float]], int]:
    model, optimizer = workloads.build("plain", "momentum")
    strategy, calls = Listening(), 0

    def metric() -> float:
        nonlocal calls
        calls += 1
        return calls + 0.5 * workers.world.rank

    options: dict[str, Any] = {} if every is None else {"report_every": every}
    with attach(model, optimizer, strategy, workers=workers, metric=metric, **options):
        train(model, optimizer, workers.world.rank, 7)
    return strategy.heard, calls


def test_a_metric_is_called_every_so_many_steps() -> None:
    for heard, calls in run_job(report_by_metric, 3, nodes=(1, 1)):
        assert heard == [(3, 1.25), (6, 2.25)]
        assert calls == 2
    for heard, calls in run_job(report_by_metric, None, nodes=(1, 1)):
        assert (heard, calls) == ([], 0)  # a hundred steps, if nobody says otherwise


def write_tensorboard(workers: Workers, folder: str, ending: str) -> None:
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, "daso", workers=workers, tensorboard=str(Path(folder, ending)))
    train(model, optimizer, workers.world.rank, 6)
    pace.report(0.75)
    if ending == "finish":
        # Nobody detaches, and the process ends without closing anything.
        pace.finish()
    else:
        pace.detach()


@pytest.mark.parametrize("ending", ["finish", "detach"])
def test_the_first_worker_writes_tensorboard_files(tmp_path: Path, ending: str) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_job(write_tensorboard, str(tmp_path), ending, nodes=(2, 1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    tags = {tag.removeprefix("paceline/") for tag in events.Tags()["scalars"]}
    parts = {"step_s", "compute_s", "waiting_s", "merging_s"}
    sent = {"bytes_world", "bytes_node", "bytes_across"}
    assert tags == parts | sent | {"metric", "period", "delay", "phase"}
    by_step = {event.step: event.value for event in events.Scalars("paceline/step_s")}
    assert sorted(by_step) == [1, 2, 3, 4, 5, 6]
    assert [(event.step, event.value) for event in events.Scalars("paceline/metric")] == [(6, 0.75)]
    phases = [event.value for event in events.Scalars("paceline/phase")]
    assert phases == [0, 0, 0, 0, 1, 1]


def train_five(
    workers: Workers, strategy: str, options: dict[str, Any]
) -> tuple[Stats, dict[str, Any], int]:
    """Stats, their summary, and the world's bytes before the first step."""
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, strategy, workers=workers, **options)
    before = workers.world.bytes_handed
    train(model, optimizer, workers.world.rank, 5)
    pace.detach()
    return pace.stats, pace.stats.summary(), before


# 58 values, one number for each of the four parameters that says it has a gradient, and one that
# says this worker has data.
NUM_VALUES = 7 * 5 + 5 + 5 * 3 + 3
BUCKET_BYTES = 4 * (NUM_VALUES + 4 + 1)


def test_stats_of_sync() -> None:
    for stats, summary, before in run_job(train_five, "sync", {}, nodes=(2, 1)):
        assert stats.num_steps == summary["num_steps"] == 5
        expected = {"world": before + 5 * BUCKET_BYTES, "node": 0, "across": 0}
        assert stats.bytes_by_team == expected
        assert stats.status == {}
        check_times(stats)


def check_times(stats: Stats) -> None:
    for step in stats.steps:
        assert step.total_s > 0
        assert step.waiting_s >= 0
        assert step.merging_s >= 0
        assert step.total_s == pytest.approx(step.compute_s + step.waiting_s + step.merging_s)
        assert step.compute_s > 0
    assert 0 <= stats.waiting_share < 1


def test_stats_of_daso() -> None:
    options = {"warmup_steps": 1, "period": 2, "delay": 1, "late": "wait"}
    results = run_job(train_five, "daso", options, nodes=(2, 1))
    for rank, (stats, summary, before) in enumerate(results):
        assert stats.bytes_by_team["world"] == before
        assert stats.status == {"period": 2, "delay": 1, "phase": 1}
        assert summary["period"] == 2
        # Exchanges at steps 1, 3 and 5; of the last, nobody knows how far it has come. The nodes'
        # health travels with them. The second worker of the first node has nobody to talk to.
        across = stats.bytes_by_team["across"]
        of_one = 4 * NUM_VALUES + 4 * 2
        assert across == 0 if rank == 1 else 2 * of_one <= across <= 3 * of_one
        node = stats.bytes_by_team["node"]
        assert (node >= 5 * BUCKET_BYTES) if rank < 2 else (node == 0)
        check_times(stats)


def test_stats_add_up() -> None:
    stats = Stats(status={"period": 4})
    stats.add(StepTimes(total_s=2.0, waiting_s=0.5, merging_s=0.25))
    stats.add(StepTimes(total_s=4.0, waiting_s=1.0, merging_s=0.25))
    assert stats.waiting_share == 0.25
    assert stats.summary() == {
        "num_steps": 2,
        "step_s": 3.0,
        "compute_s": 2.0,
        "waiting_s": 0.75,
        "merging_s": 0.25,
        "bytes_by_team": {},
        "period": 4,
    }
    assert [step.total_s for step in stats.steps] == [2.0, 4.0]
    assert Stats().waiting_share == 0.0
    assert Stats().summary()["step_s"] == 0.0


def test_stats_of_a_long_run_stay_small_and_count_all_of_it() -> None:
    stats = Stats()
    for step in range(10 * WINDOW):
        stats.add(StepTimes(total_s=2.0, waiting_s=1.0 if step < WINDOW else 0.0, merging_s=0.5))
    assert len(stats.steps) == WINDOW
    assert stats.num_steps == stats.summary()["num_steps"] == 10 * WINDOW
    assert stats.waiting_share == pytest.approx(0.05)
    assert stats.summary()["step_s"] == pytest.approx(2.0)
    assert stats.summary()["merging_s"] == pytest.approx(0.5)
    assert stats.steps[-1].waiting_s == 0.0
