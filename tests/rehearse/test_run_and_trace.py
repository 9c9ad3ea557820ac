"""Whole runs and traces of predictions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from paceline.cluster import load_cluster
from paceline.rehearse import predict
from paceline.rehearse.run import num_steps_of, run_cost
from paceline.steps import zoo_step
from paceline.traces.trace import TRACKS, read_trace


def test_steps_phases_hours_and_dollars_of_a_run() -> None:
    run = run_cost(
        samples=1000,
        num_steps=num_steps_of(1000, workers=4, batch=8),
        phases={"warm-up": 4, "cycling": None, "cool-down": 2},
        phases_s={"warm-up": 10.0, "cycling": 1.0, "cool-down": 5.0},
        workers=4,
        price_per_hour=36.0,
    )
    assert run.num_steps == 32
    assert run.phases == {"warm-up": 4, "cycling": 26, "cool-down": 2}
    assert run.seconds == 40 + 26 + 10
    assert run.mean_step_s == 76 / 32
    assert run.device_hours == pytest.approx(4 * 76 / 3600)
    assert run.dollars == pytest.approx(0.76)


@pytest.mark.parametrize("num_steps", [1, 4, 5, 7])
def test_a_run_shorter_than_its_phases(num_steps: int) -> None:
    step = zoo_step("mlp", batch=8)
    samples = 32 * num_steps
    found = predict(step, cluster="lab-2x2", strategy="daso", samples=samples, device="h200")
    assert found.run is not None
    assert sum(found.run.phases.values()) == num_steps
    assert found.run.phases["warm-up"] == min(4, num_steps)


def test_a_run_of_a_strategy_with_phases_is_longer_than_its_cycling() -> None:
    step = zoo_step("mlp", batch=8)
    found = predict(
        step, cluster="lab-2x2", strategy="daso", samples=32 * 100, warmup_steps=20, device="h200"
    )
    assert found.run is not None
    assert found.run.phases == {"warm-up": 20, "cycling": 76, "cool-down": 4}
    expected = sum(count * found.phases_s[name] for name, count in found.run.phases.items())
    assert found.run.seconds == pytest.approx(expected)
    assert found.run.mean_step_s > found.step_s
    assert found.run.dollars is None
    assert found.to_dict()["run"]["num_steps"] == 100


def test_one_worker_has_a_run_too() -> None:
    found = predict(zoo_step("mlp", batch=8), device="h200", samples=80)
    assert found.run is not None
    assert found.run.seconds == pytest.approx(10 * found.step_s)
    assert "run" not in predict(zoo_step("mlp", batch=8), device="h200").to_dict()


def test_a_predicted_trace_has_the_tracks_of_a_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "predicted.json.gz"
    found = predict(
        zoo_step("small-cnn", batch=8), cluster="lab-2x2", strategy="daso", trace=path,
        device="h200",
    )  # fmt: skip
    spans, names = read_trace(path)
    assert list(names.values()) == [f"node 0 worker {i} (for all alike)" for i in range(2)]
    assert {span.track for span in spans} == set(TRACKS) - {"world"}
    compute = [span for span in spans if span.track == "compute" and span.worker == 0]
    assert {span.name for span in compute} >= {"forward", "backward", "optimizer"}
    for one, other in pairwise(sorted(compute, key=lambda span: span.start_s)):
        assert other.start_s >= one.end_s - 2e-6
    steps = [span for span in spans if span.track == "step" and span.worker == 0]
    assert steps[-1].end_s - steps[-5].end_s == pytest.approx(4 * found.step_s, rel=1e-3)
    exchanges = [span for span in spans if span.track == "background"]
    across = [span for span in spans if span.track == "across"]
    for span in across:
        assert any(
            one.start_s - 2e-6 <= span.start_s and span.end_s <= one.end_s + 2e-6
            for one in exchanges
            if one.worker == span.worker
        )


def test_a_trace_of_one_worker_names_operators(tmp_path: Path) -> None:
    path = tmp_path / "alone.json"
    predict(zoo_step("mlp", batch=8), device="h200", trace=path)
    spans, _ = read_trace(path)
    assert {"forward: addmm", "backward: mm"} <= {span.name for span in spans}


def test_a_trace_with_another_suffix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\.json"):
        predict(zoo_step("mlp", batch=8), trace="trace.txt")


def test_efficiency_on_unequal_nodes_counts_what_each_could_do() -> None:
    cluster = load_cluster("mixed")
    found = predict(zoo_step("resnet18", batch=16), cluster=cluster, strategy="sync")
    assert 0 < found.scaling_efficiency < 1
    assert "," in found.device
    assert found.workers == cluster.num_workers
