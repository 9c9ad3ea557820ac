"""Clusters of unequal nodes: equal shares, balanced ones, fewer nodes."""

from __future__ import annotations

import pytest

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.devices import load_device
from paceline.kernels import KernelModel
from paceline.rehearse import predict, predict_mixed
from paceline.rehearse.compute import compute_cost
from paceline.steps import Step, capture_step, zoo_step
from paceline.steps.batches import resized

BATCH = 4000


def model() -> KernelModel:
    return KernelModel(load_device("v100"))


def mixed(slowdown: float) -> Cluster:
    """Two fast nodes and a slow one, on links that cost next to nothing."""
    base = load_cluster("dgx-h200")
    (node,) = base.node_kinds
    link = node.between.replace(bandwidth_bytes_per_s=1e14, latency_s=1e-9)
    own = node.replace(between=link, inside=link, jitter=0.0)
    fast = own.replace(name="fast", count=2, workers_per_node=2)
    slow = own.replace(name="slow", count=1, workers_per_node=1, slowdown=slowdown)
    return base.replace(name="mixed", node_kinds=(fast, slow))


def alone_s(step: Step, batch: int, slowdown: float) -> float:
    capture = capture_step(resized(step, batch))
    return compute_cost(capture, model(), slowdown=slowdown).timeline.step_s


def test_balanced_shares_are_the_best_there_are() -> None:
    step, slowdown = zoo_step("mlp", batch=BATCH), 3.0
    found = predict_mixed(step, cluster=mixed(slowdown), kernel_model=model())
    batches = found.balanced.batches
    assert 4 * batches["fast"] + batches["slow"] == pytest.approx(5 * BATCH, abs=3)
    assert batches["slow"] < BATCH < batches["fast"]
    # Of many ways to share the batch, the one whose slowest worker is done first.
    best_s = min(
        max(alone_s(step, fast, 1.0), alone_s(step, 5 * BATCH - 4 * fast, slowdown))
        for fast in range(4400, 5000, 50)
    )
    balanced, equal = found.balanced, found.equal
    assert balanced.compute_s + balanced.host_s == pytest.approx(best_s, rel=0.04)
    expected_s = alone_s(step, BATCH, slowdown)
    assert equal.compute_s + equal.host_s == pytest.approx(expected_s, rel=1e-6)
    assert equal.step_s - balanced.step_s == pytest.approx(expected_s - best_s, rel=0.1)
    assert found.balanced.throughput_per_s > found.equal.throughput_per_s
    assert found.equal == predict(step, cluster=mixed(slowdown), kernel_model=model())
    assert "times the samples per second" in found.notes()[0]


def test_nodes_that_hurt_are_named() -> None:
    found = predict_mixed(
        zoo_step("mlp", batch=BATCH), cluster=mixed(1e4), kernel_model=model(), strategy="daso"
    )
    assert found.hindering[0] == "slow"
    assert found.without["slow"].nodes == 2
    assert "'slow' hurt more than they help" in found.notes()[-1]
    assert found.to_dict()["hindering"][0] == "slow"


def test_equal_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="are alike"):
        predict_mixed(zoo_step("mlp", batch=4), cluster="dgx-h200")
