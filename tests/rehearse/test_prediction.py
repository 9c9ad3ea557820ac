"""What is said about several predictions."""

from __future__ import annotations

from paceline.rehearse import Prediction
from paceline.rehearse.prediction import fastest


def prediction(strategy: str, step_s: float) -> Prediction:
    return Prediction(
        model="mlp",
        device="h200",
        nodes=2,
        workers=4,
        batch=8,
        precision="fp32",
        strategy=strategy,
        step_s=step_s,
        compute_s=step_s,
        exposed_communication_s=0.0,
        host_s=0.0,
        host_issue_s=0.0,
        throughput_per_s=32 / step_s,
        scaling_efficiency=1.0,
        memory_bytes=1,
        memory_limit_bytes=2,
        fits=True,
        bottleneck="arithmetic",
        method={"table": 1.0},
        extrapolated=False,
        uncertainty=0.1,
    )


def test_strategies_closer_than_five_percent_may_all_be_the_fastest() -> None:
    steps_s = {"slow": 0.106, "second": 0.1049, "first": 0.1, "slowest": 1.0}
    met = fastest([prediction(name, step_s) for name, step_s in steps_s.items()])
    assert [each.strategy for each in met] == ["first", "second"]


def test_one_that_is_clearly_faster_is_alone() -> None:
    met = fastest([prediction("sync", 0.12), prediction("daso", 0.1)])
    assert [each.strategy for each in met] == ["daso"]
