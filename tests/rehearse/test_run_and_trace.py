"""Whole runs and traces of predictions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import load_cluster
from paceline.rehearse import predict
from paceline.rehearse.run import PhaseCost, num_steps_of, run_cost
from paceline.steps import zoo_step
from paceline.strategies import Schedule, Strategy
from paceline.traces.trace import TRACKS, read_trace


def test_steps_phases_hours_and_dollars_of_a_run() -> None:
    run = run_cost(
        samples=1000,
        num_steps=num_steps_of(1000, workers=4, batch=8),
        counts={"warm-up": 4, "cycling": 26, "cool-down": 2},
        phases={
            "warm-up": PhaseCost(rest_s=10.0),
            "cycling": PhaseCost(first_s=[3.0, 2.0], rest_s=1.0),
            "cool-down": PhaseCost(first_s=[9.0, 1.0, 1.0], rest_s=1.0),
        },
        workers=4,
        price_per_hour=36.0,
    )
    assert run.num_steps == 32
    assert run.phases == {"warm-up": 4, "cycling": 26, "cool-down": 2}
    assert run.seconds == 40 + (3 + 2 + 24) + (9 + 1)
    assert run.mean_step_s == 79 / 32
    assert run.device_hours == pytest.approx(4 * 79 / 3600)
    assert run.dollars == pytest.approx(0.79)


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


def test_a_step_that_happens_once_is_counted_once() -> None:
    """Two cycling steps: one only computes, and the other starts an exchange and waits for it."""
    slow = load_cluster("lab-2x2").with_link(1e5)
    options: dict[str, Any] = {"warmup_steps": 0, "cooldown_steps": 1, "period": 2, "delay": 0}
    found = predict(
        zoo_step("mlp", batch=8), cluster=slow, strategy="daso", samples=32 * 3, **options
    )
    assert found.run is not None
    assert found.run.phases == {"warm-up": 0, "cycling": 2, "cool-down": 1}
    # Two exchanges in all: one in the second step, and the last step's.
    assert found.run.seconds == pytest.approx(2 * found.phases_s["cool-down"], rel=0.05)


class Told(Strategy):
    """Wants to know the run's length."""

    length = 0

    def schedule(self) -> Schedule:
        return Schedule(wants_length=True)

    def set_run_length(self, num_steps: int) -> None:
        type(self).length = num_steps


def test_a_strategy_of_ones_own_is_told_the_runs_length_if_it_wants_to_know() -> None:
    predict(zoo_step("mlp", batch=8), cluster="lab-2x2", strategy=Told(), samples=32 * 7)
    assert Told.length == 7


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


def test_spans_include_what_communication_beside_them_costs(tmp_path: Path) -> None:
    """Computing fills a predicted step without a gap, also where an exchange slows it down."""
    own = load_cluster("lab-2x2")
    (kind,) = own.node_kinds
    slow = kind.between.replace(interference=0.5, lone_interference=0.5)
    cluster = own.replace(node_kinds=(kind.replace(between=slow),))
    path = tmp_path / "trace.json"
    predict(zoo_step("mlp", batch=256), cluster=cluster, strategy="daso", trace=path)
    spans = [span for span in read_trace(path)[0] if span.worker == 0]
    steps = [span for span in spans if span.track == "step"]
    assert len(steps) > 4
    for step in steps:
        inside = [
            span.end_s - span.start_s
            for span in spans
            if span.track == "compute" and step.start_s <= span.start_s < step.end_s
        ]
        assert sum(inside) == pytest.approx(step.end_s - step.start_s, abs=2e-5)
