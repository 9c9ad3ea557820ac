"""What a race predicts of its entries, against the prediction of the whole run."""

from __future__ import annotations

import pytest

from paceline.cluster import load_cluster
from paceline.race.forecast import forecast
from paceline.race.task import NUM_WARM_UP_STEPS, RaceSettings
from paceline.rehearse import predict
from paceline.steps.source import zoo_step

NUM_STEPS = 22
BATCH = 32
CLUSTER = load_cluster("lab-2x2")
SETTINGS = RaceSettings(
    model="mlp",
    data="digits",
    epochs=2,
    batch=BATCH,
    learning_rate=0.05,
    target=0.95,
    seed=0,
    options={"daso": {"period": 2}},
)


def test_an_entry_takes_its_share_of_the_run_without_the_first_steps() -> None:
    step = zoo_step("mlp", batch=BATCH, optimizer="sgd")
    samples = NUM_STEPS * BATCH * 4
    whole = predict(step, cluster=CLUSTER, strategy="daso", samples=samples, period=2)
    found = forecast("daso", SETTINGS, CLUSTER, NUM_STEPS)
    assert whole.run is not None
    assert found is not None
    warm_up_s = NUM_WARM_UP_STEPS * whole.phases_s[next(iter(whole.run.phases))]
    timed_s = found.step_s * (NUM_STEPS - NUM_WARM_UP_STEPS)
    assert timed_s + warm_up_s == pytest.approx(whole.run.seconds)
    assert found.high_s / found.step_s == pytest.approx(1 + whole.uncertainty)


def test_the_floor_is_the_slowest_node_by_itself() -> None:
    fast, slow = (
        CLUSTER.node_kinds[0].replace(name=name, count=1, slowdown=slowdown)
        for name, slowdown in (("fast", 1.0), ("slow", 3.0))
    )
    floor = forecast("floor", SETTINGS, CLUSTER.replace(node_kinds=(fast, slow)), NUM_STEPS)
    alone = forecast("ddp", SETTINGS, CLUSTER.replace(node_kinds=(slow,)), NUM_STEPS)
    assert floor == alone
    ddp = forecast("ddp", SETTINGS, CLUSTER, NUM_STEPS)
    assert ddp is not None and floor is not None
    assert ddp.exposed_communication_s > floor.exposed_communication_s


def test_other_libraries_are_not_predicted() -> None:
    assert forecast("ddp-powersgd", SETTINGS, CLUSTER, NUM_STEPS) is None
