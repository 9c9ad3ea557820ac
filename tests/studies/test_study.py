from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from paceline.cluster import load_cluster
from paceline.rehearse import Rehearsal, predict
from paceline.rehearse.setting import find_kernel_models
from paceline.steps import Step, zoo_step
from paceline.strategies import (
    LocalSgd,
    Strategy,
    comparable_strategy_names,
    make_strategy,
)
from paceline.studies import Study, study
from paceline.studies.crossings import Curve, crossings_of, told_once
from paceline.studies.points import Points
from paceline.studies.timing import Timing

STRATEGIES = ("sync", "daso", "local-sgd")
CLUSTER = load_cluster("ethernet-10g")
NEARLY = 1e-6  # for arrays, the slowest of many workers is interpolated between exact values


@pytest.fixture(scope="module")
def step() -> Step:
    return zoo_step("small-cnn", batch=32)


@pytest.fixture(scope="module")
def found(step: Step) -> Study:
    return study(
        step,
        cluster=CLUSTER,
        strategies=STRATEGIES,
        workers=[1, 2, 4, 8, 16, 64, 128],
        batch=[16, 32],
        link="100mbit:100gbit",
        arithmetic=[0.5, 1.0, 2.0],
        memory_bandwidth=[0.5, 1.0, 2.0],
        maps=[("workers", "link")],
    )


def test_strategies_as_objects_are_told_apart_by_their_options(step: Step) -> None:
    strategies: list[str | Strategy] = ["local-sgd", LocalSgd(period=2), LocalSgd(period=16)]
    found = study(step, cluster=CLUSTER, strategies=strategies, workers=[8], maps=[])
    assert found.strategies == ("local-sgd", "local-sgd(period=2)", "local-sgd(period=16)")
    for title, strategy in zip(found.strategies, strategies, strict=True):
        said = predict(step, cluster=CLUSTER, strategy=strategy)
        assert found.base_row(title)["step_s"] == pytest.approx(said.step_s, rel=1e-4)
    with pytest.raises(ValueError, match="names one of them twice"):
        study(step, cluster=CLUSTER, strategies=["sync", "sync"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_point_is_what_predict_says(step: Step, found: Study, strategy: str) -> None:
    along = found.table.where(sweep="workers", scaling="weak", strategy=strategy)
    for row in along.rows():
        per_node = CLUSTER.node_kinds[0].workers_per_node
        nodes = max(1, row["workers"] // per_node)
        said = predict(
            step,
            cluster=CLUSTER,
            nodes=nodes,
            workers_per_node=min(row["workers"], per_node),
            strategy=strategy,
        )
        assert row["step_s"] == pytest.approx(said.step_s, rel=NEARLY)
        assert row["efficiency"] == pytest.approx(said.scaling_efficiency, rel=NEARLY)
        assert row["throughput_per_s"] == pytest.approx(said.throughput_per_s, rel=NEARLY)
        for part in ("compute_s", "host_s", "exposed_communication_s"):
            assert row[part] == pytest.approx(getattr(said, part), rel=NEARLY, abs=1e-9)
        low, high = said.range_s
        assert (row["low_s"], row["high_s"]) == pytest.approx((low, high), rel=NEARLY)
        samples = row["workers"] * row["batch"]
        assert row["throughput_low_per_s"] == pytest.approx(samples / high, rel=NEARLY)
        assert row["throughput_high_per_s"] == pytest.approx(samples / low, rel=NEARLY)
        assert row["efficiency_low"] <= row["efficiency"] <= row["efficiency_high"]


@pytest.mark.parametrize("as_object", [False, True])
def test_messages_that_grow_with_the_number_of_nodes(step: Step, as_object: bool) -> None:
    """DeMo gathers what every node sends: another recording for each number of nodes."""
    strategy = make_strategy("demo") if as_object else "demo"
    found = study(
        step, cluster=CLUSTER, strategies=[strategy], workers=[2, 3, 16], batch=[32], maps=[]
    )
    along = found.table.where(sweep="workers", scaling="weak")
    for row in along.rows():
        said = predict(step, cluster=CLUSTER.with_nodes(row["nodes"]), strategy=strategy)
        assert row["step_s"] == pytest.approx(said.step_s, rel=NEARLY)


@pytest.mark.parametrize("wrong_by", [0, 1, -1, 5])
def test_what_is_known_of_points_like_these_changes_nothing(step: Step, wrong_by: int) -> None:
    """Not even if it is wrong: it saves plays alone."""
    timing = Timing(
        step=step,
        cluster=CLUSTER,
        kernel_model=find_kernel_models(CLUSTER, None, None)["rtx4090"],
        jitter=None,
    )
    names = np.repeat(["daso", "streaming-diloco"], 60)
    points = Points(
        sweep=np.full(120, "link"),
        scaling=np.full(120, "weak"),
        strategy=names,
        batch=np.full(120, 32),
        arithmetic=np.ones(120),
        memory_bandwidth=np.ones(120),
        link=np.tile(np.geomspace(1e6, 1e11, 60), 2),
        workers=np.full(120, 8),
    )
    base = timing.timed(points)
    assert len(np.unique(base.lateness)) > 2
    like = replace(base, lateness=np.maximum(base.lateness + wrong_by, 0))
    anew = timing.timed(points, "link bandwidth")
    again = timing.timed(points, "link bandwidth", like=like)
    assert np.array_equal(again.steps_s, anew.steps_s)
    assert np.array_equal(again.lateness, anew.lateness)


def test_strong_scaling_keeps_the_global_batch(found: Study) -> None:
    along = found.table.where(sweep="workers", scaling="strong", strategy="sync")
    assert len(along) > 2
    total = CLUSTER.num_workers * 32
    assert set((along["batch"] * along["workers"]).tolist()) == {total}
    weak = found.table.where(sweep="workers", scaling="weak", strategy="sync")
    assert set(weak["batch"].tolist()) == {32}


def test_gains_are_what_a_tenth_more_brings(step: Step, found: Study) -> None:
    """Against another prediction, on a cluster with a tenth more bandwidth."""
    base = found.base_row("sync")
    own = CLUSTER.node_kinds[0].between.bandwidth_bytes_per_s
    faster = predict(step, cluster=CLUSTER.with_link(1.1 * own), strategy="sync")
    assert base["gain_link_bandwidth"] == pytest.approx(
        1 - faster.step_s / base["step_s"], abs=1e-6
    )


def test_the_bottleneck_moves_from_links_to_the_device(found: Study) -> None:
    along = found.table.where(sweep="link", strategy="sync")
    order = np.argsort(along["link_bytes_per_s"])
    assert along["bottleneck"][order][0] == "link bandwidth"
    assert along["bottleneck"][order][-1] != "link bandwidth"
    steps_s = along["step_s"][order]
    assert np.all(np.diff(steps_s) <= 1e-12)


def test_every_point_of_a_map_is_there_once(found: Study) -> None:
    points = found.table.where(sweep="workers*link", strategy="daso")
    pairs = set(zip(points["workers"].tolist(), points["link_bytes_per_s"].tolist(), strict=True))
    assert len(pairs) == len(points) == len(found.axes.workers) * len(found.axes.link)


def test_tables_as_text(found: Study) -> None:
    rows = list(csv.DictReader(io.StringIO(found.table.to_csv())))
    assert len(rows) == len(found.table)
    assert float(rows[5]["step_s"]) == found.table["step_s"][5]
    points = json.loads(found.to_json())["points"]
    assert points[5]["step_s"] == found.table["step_s"][5]


def curve(limits: str, efficiency: list[float]) -> Curve:
    names = {"l": "link bandwidth", "a": "arithmetic"}
    return Curve(
        workers=2 ** np.arange(len(limits)),
        bottleneck=np.array([names[limit] for limit in limits]),
        efficiency=np.array(efficiency),
    )


def test_what_holds_for_several_strategies_istold_once() -> None:
    told = ["a: links limit.", "b: host limits.", "c: links limit.", "a: and more."]
    assert told_once(("a", "b", "c"), told) == [
        "a, c: links limit.",
        "b: host limits.",
        "a: and more.",
    ]
    assert told_once(("a", "b"), ["a: same.", "b: same."]) == ["all strategies: same."]
    assert told_once(("a",), ["a: same."]) == ["a: same."]


def test_crossings_in_words() -> None:
    own = curve("aalll", [1, 0.9, 0.7, 0.5, 0.3])
    twice = curve("aaaal", [1, 0.9, 0.9, 0.9, 0.7])
    assert crossings_of("sync", own, lambda: twice) == [
        "sync: beyond 2 workers the links limit; doubling their bandwidth moves that to 8.",
        "sync: beyond 2 workers the efficiency is below 80%.",
    ]
    early = curve("allll", [1, 0.7, 0.6, 0.5, 0.3])
    assert crossings_of("sync", early, lambda: early)[1] == (
        "sync: beyond 1 worker the efficiency is below 80%."
    )
    never = curve("aaaaa", [1.0] * 5)
    assert crossings_of("daso", never, lambda: never) == [
        "daso: the links do not limit, up to 16 workers."
    ]


def test_only_messages_that_grow_need_their_own_recording(step: Step) -> None:
    for name in comparable_strategy_names():
        rehearsal = Rehearsal(step, name, node_sizes=[2, 2])
        assert rehearsal.is_same_on_more_nodes() == (name != "demo")
