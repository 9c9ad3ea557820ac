"""Numbers of a run, read back from where real libraries have written them."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.integrations.mlflow import MlflowLogger
from paceline.integrations.tensorboard import TensorBoardLogger
from paceline.integrations.wandb import WandbLogger
from paceline.teams import Workers
from paceline.train import Forecast, Logger, attach
from paceline.train.stats import Stats, StepTimes

PARTS = {"step_s", "compute_s", "waiting_s", "merging_s"}
BYTES = {"bytes_world", "bytes_node", "bytes_across"}
MONEY = {"predicted_step_s", "step_over_predicted", "dollars_spent", "dollars_expected"}
FORECAST = Forecast(step_s=0.25, total_steps=100, price_per_hour=36.0)


class Notebook(Logger):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.settings: dict[str, str | float] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False

    def start(self, settings: Mapping[str, str | float]) -> None:
        self.settings.update(settings)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((step, dict(numbers)))

    def close(self) -> None:
        self.is_closed = True


class Broken(Notebook):
    """Fails at its second row."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        super().log(step, numbers)
        if len(self.rows) == 2:
            raise ConnectionError("the server is gone")


def train(loggers: Any, workers: Workers, steps: int = 4, **options: Any) -> Stats:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "local-sgd", workers=workers, loggers=loggers, **options) as pace:
        for step in range(steps):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()
        pace.report(0.5)
    return pace.stats


def log_in_job(workers: Workers) -> tuple[dict[str, Any], list[Any], bool, int, int, float]:
    book, broken = Notebook(), Broken()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stats = train([broken, book], workers, forecast=FORECAST, log_every=2)
    told = [w for w in caught if "Broken failed and is left out" in str(w.message)]
    return book.settings, book.rows, book.is_closed, len(broken.rows), len(told), stats.total_s


def test_only_one_worker_logs_and_a_broken_logger_breaks_nothing() -> None:
    first, *others = run_job(log_in_job, nodes=(1, 1))
    assert [(settings, rows, closed) for settings, rows, closed, *_ in others] == [({}, [], False)]
    settings, rows, is_closed, num_broken, num_warnings, total_s = first
    assert (is_closed, num_broken, num_warnings) == (True, 2, 1)
    assert settings["strategy"] == "LocalSgd"
    assert (settings["workers"], settings["nodes"], settings["option_period"]) == (2, 2, 8)
    assert settings["predicted_dollars"] == pytest.approx(100 * 0.25 / 3600 * 36.0)
    (step_2, _), (step_4, numbers), (step_of_metric, metric) = rows
    assert (step_2, step_4, step_of_metric, metric) == (2, 4, 4, {"metric": 0.5})
    assert set(numbers) == PARTS | BYTES | MONEY | {"period", "delay"}
    # Thirty-six dollars per hour are one cent per second.
    assert numbers["dollars_spent"] == pytest.approx(0.01 * total_s)
    assert numbers["dollars_expected"] == pytest.approx(0.01 * total_s * 100 / 4)
    assert numbers["step_over_predicted"] == pytest.approx(numbers["step_s"] / 0.25)


def test_means_of_several_steps() -> None:
    from paceline.train.monitor import Monitor

    book, stats = Notebook(), Stats()
    monitor = Monitor([book], log_every=2)
    for step, total_s in enumerate([1.0, 3.0, 5.0], start=1):
        times = StepTimes(total_s=total_s, waiting_s=total_s / 2, merging_s=0.0)
        stats.add(times)
        monitor.log_step(step, times, stats)
    ((step, numbers),) = book.rows
    assert (step, numbers["step_s"], numbers["waiting_s"]) == (2, 2.0, 1.0)


def write_tensorboard(workers: Workers, folder: str) -> None:
    train(TensorBoardLogger(folder), workers, forecast=FORECAST)


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_job(write_tensorboard, str(tmp_path), nodes=(1, 1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    tags = {tag.removeprefix("paceline/") for tag in events.Tags()["scalars"]}
    assert tags == PARTS | BYTES | MONEY | {"period", "delay", "metric"}
    assert [event.step for event in events.Scalars("paceline/dollars_spent")] == [1, 2, 3, 4]
    (settings,) = events.Tensors("paceline/settings/text_summary")
    assert b"| strategy | LocalSgd |" in settings.tensor_proto.string_val[0]


def write_wandb(workers: Workers, folder: str) -> None:
    os.environ["WANDB_SILENT"] = "true"
    train(WandbLogger(project="test", mode="offline", dir=folder), workers, forecast=FORECAST)


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_job(write_wandb, str(tmp_path), nodes=(1, 1))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = wandb_records_of_ended_run(file)
    rows = [
        {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in r.history.item
        }
        for r in records
        if r.HasField("history")
    ]
    steps = [row for row in rows if "paceline/step_s" in row]
    assert [row["paceline/step"] for row in steps] == [1, 2, 3, 4]
    for name in PARTS | BYTES | MONEY:
        assert all(f"paceline/{name}" in row for row in steps)
    assert [row["paceline/metric"] for row in rows if "paceline/metric" in row] == [0.5]
    config = [
        json.loads(each.value_json)
        for record in records
        for each in (*record.config.update, *record.run.config.update)
        if each.key == "paceline"
    ]
    assert config[0]["strategy"] == "LocalSgd"
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]


def wandb_records_of_ended_run(file: Path) -> list[Any]:
    """All records: wandb writes them in a process of its own, which outlives the worker."""
    deadline = time.monotonic() + 60.0
    while True:
        records = list(wandb_records(file.read_bytes()))
        if any(each.HasField("exit") for each in records) or time.monotonic() > deadline:
            return records
        time.sleep(0.1)


def wandb_records(data: bytes) -> Iterator[Any]:
    """The records of a file that wandb writes: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2 as records

    block, whole = 32 * 1024, b""
    place = 7
    while place + 7 <= len(data):
        if block - place % block < 7:  # padding at the end of a block
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if place + 7 + length > len(data):  # still being written
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of it, or its end
            record = records.Record()  # type: ignore[attr-defined]
            record.ParseFromString(whole)
            whole = b""
            yield record


def write_mlflow(workers: Workers, uri: str) -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    train(MlflowLogger(experiment="test", tracking_uri=uri), workers, forecast=FORECAST)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its database takes ten seconds to set up; both stores have one interface.
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = tmp_path.as_uri()
    run_job(write_mlflow, uri, nodes=(1, 1))
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("test")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["paceline/strategy"] == "LocalSgd"
    names = {name.removeprefix("paceline/") for name in run.data.metrics}
    assert names == PARTS | BYTES | MONEY | {"period", "delay", "metric"}
    history = client.get_metric_history(run.info.run_id, "paceline/step_s")
    # Several threads of MLflow's send them.
    assert sorted(each.step for each in history) == [1, 2, 3, 4]


def test_loggers_that_cannot_be(tmp_path: Path) -> None:
    model, optimizer = workloads.build("plain", "momentum")
    for loggers, words in (
        ("wandbb", "logger 'wandbb' is not known; did you mean 'wandb'"),
        (["nothing"], "known are tensorboard, wandb, mlflow"),
        (object(), "object is no logger: it has no start"),
    ):
        with pytest.raises(ValueError, match=words):
            attach(model, optimizer, loggers=loggers)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log_every=0 must be at least 1"):
        attach(model, optimizer, log_every=0)
    with pytest.raises(ValueError, match="price_per_hour=-1 must not be less than 0"):
        Forecast(price_per_hour=-1)
    with pytest.raises(ValueError, match="a run that exists takes no options; leave project out"):
        WandbLogger(object(), project="x")


def test_the_forecast_of_a_prediction() -> None:
    from paceline.rehearse import predict
    from paceline.steps import load_step

    step = load_step("mlp")
    asked: dict[str, Any] = {"cluster": "aws-p4d", "nodes": 2, "samples": 100_000}
    forecast = predict(step, **asked).forecast()
    assert forecast.total_steps and forecast.step_s
    from paceline.cluster import load_cluster

    price = load_cluster("aws-p4d").with_nodes(2).price_per_hour
    assert forecast.price_per_hour == pytest.approx(price)
    assert predict(step, **asked).forecast(price_per_hour=1.0).price_per_hour == 1.0
