"""Predicted and measured traces laid over each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from jobs import run_job
from paceline.cli import frame, main
from paceline.studies.trace_comparison import compare_traces
from paceline.teams import Workers
from paceline.traces.trace import write_trace
from paceline.train import attach
from synthetic_reports import spans, trace_files


def test_where_they_part(tmp_path: Path) -> None:
    found = compare_traces(*trace_files(tmp_path))
    assert found.period == 2
    assert found.num_steps == 10  # whole cycles of the eleven that were measured
    assert found.step.predicted_s == pytest.approx(0.5)
    assert found.step.measured_s == pytest.approx(0.55)
    times = {each.phase: each for each in found.phases}
    assert set(times) == {"forward", "backward", "wait", "communication"}
    assert times["forward"].difference_s == pytest.approx(0, abs=1e-6)
    assert times["backward"].predicted_s == pytest.approx(0.2)
    assert times["backward"].measured_s == pytest.approx(0.25)
    assert times["wait"].difference_s == pytest.approx(0, abs=1e-6)
    assert found.parting.phase == "backward"
    # One cycle of each is shown, and the long steps are at the same place in both.
    for name, lengths in (("predicted", [0.4, 0.6]), ("measured", [0.45, 0.65])):
        steps = [span for span in found.timelines[name] if span.track == "step"]
        assert [span.end_s - span.start_s for span in steps] == pytest.approx(lengths)
        assert steps[0].start_s == 0


def test_a_measured_run_that_begins_within_a_cycle(tmp_path: Path) -> None:
    predicted, measured = tmp_path / "predicted.json", tmp_path / "measured.json"
    names = {0: "node 0 worker 0"}
    write_trace(predicted, spans([0.4, 0.4, 0.8] * 4), worker_names=names, title="p")
    write_trace(
        measured, spans([0.8, *[0.4, 0.4, 0.8] * 3, 0.4, 0.4]), worker_names=names, title=""
    )
    found = compare_traces(predicted, measured)
    assert (found.period, found.offset, found.num_steps) == (3, 1, 12)
    assert found.step.measured_s == pytest.approx(found.step.predicted_s)
    for name in ("predicted", "measured"):
        steps = [span for span in found.timelines[name] if span.track == "step"]
        assert [span.end_s - span.start_s for span in steps] == pytest.approx([0.4, 0.4, 0.8])


def test_overlapping_collectives_count_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    once = spans([0.4] * 4)
    names = {0: "node 0 worker 0"}
    twice = [*once, *(span for span in once if span.track == "world")]
    write_trace(path, twice, worker_names=names, title="a")
    found = compare_traces(path, path)
    (communication,) = [each for each in found.phases if each.phase == "communication"]
    assert communication.measured_s == pytest.approx(0.3)


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    write_trace(path, [], worker_names={0: "node 0 worker 0"}, title="empty")
    with pytest.raises(ValueError, match="no steps to compare"):
        compare_traces(path, path)


def train_traced(workers: Workers, trace: Path) -> None:
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer, "sync", workers=workers, trace=trace, trace_steps=(2, 6)):
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()


def test_the_command_on_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real run of one worker against the prediction of the same step."""
    measured, predicted = tmp_path / "measured.json", tmp_path / "predicted.json"
    run_job(train_traced, measured, nodes=(1,))
    model_arguments = ["mlp", "--device", "h200", "--trace", str(predicted)]
    assert frame.run(main.app, ["predict", *model_arguments]) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    arguments = ["trace", "compare", str(predicted), str(measured), "--out", str(out), "--json"]
    assert frame.run(main.app, arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_steps"] == 4 and found["num_workers"] == 1 and found["period"] == 1
    assert json.loads((out / "comparison.json").read_text()) == found
    inside = [
        each
        for each in found["phases"]
        if each["phase"] in ("forward", "backward", "optimizer", "wait")
    ]
    assert sum(each["measured_s"] for each in inside) == pytest.approx(
        found["step_s"]["measured"], rel=0.05
    )
    assert "They part most in" in (out / "report.html").read_text("utf-8")
