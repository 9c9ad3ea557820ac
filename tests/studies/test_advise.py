from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from paceline.cluster import Cluster, load_cluster, load_device
from paceline.rehearse import predict
from paceline.rehearse.mixed import predict_mixed
from paceline.steps import Step, zoo_step
from paceline.strategies import LocalSgd
from paceline.studies import Advice, advise
from paceline.studies.candidates import Candidate, Variant, node_counts, variants_of
from paceline.studies.search import Search
from paceline.studies.wishes import Wishes, judge, parse_time

SAMPLES = 1_000_000
STRATEGIES = ["sync", "sync-hierarchical", "daso"]
MOST = 64
CLOSE = 0.05  # what predictions cannot tell apart


@pytest.fixture(scope="module")
def step() -> Step:
    return zoo_step("mlp", batch=32)


def priced(name: str, nodes: int, price: float) -> Cluster:
    own = load_cluster(name).with_nodes(nodes)
    return own.replace(node_kinds=(own.node_kinds[0].replace(price_per_hour=price),))


@pytest.fixture(scope="module")
def slow() -> Cluster:
    return priced("ethernet-10g", 3, 2.0).with_link(50e6)


@pytest.fixture(scope="module")
def pair(slow: Cluster) -> Cluster:
    return slow.with_nodes(2)


@pytest.fixture(scope="module")
def found(step: Step, pair: Cluster) -> Advice:
    return advise(step, cluster=pair, strategies=STRATEGIES, max_global_batch=MOST, samples=SAMPLES)


def every_way(cluster: Cluster) -> list[tuple[Candidate, float]]:
    """Samples per second of the whole grid, by predict alone: no bound, no order, no cache."""
    tried = variants_of(STRATEGIES)
    options = [
        Variant(),
        *(Variant(options={"bucket_bytes": size}) for size in (4 << 20, 100 << 20)),
        *tried,
        *(
            variant.replaced(wire=wire)
            for variant in tried
            if variant.staleness
            for wire in ("bf16", "int8")
        ),
    ]
    ways = []
    for nodes, batch in itertools.product(range(1, cluster.num_nodes + 1), (32, 64)):
        own = cluster.with_nodes(nodes)
        if batch * own.num_workers > MOST:
            continue
        sized = zoo_step("mlp", batch=batch)
        for variant in options:
            said = predict(sized, cluster=own, strategy=variant.strategy, **variant.options)
            assert said.fits
            candidate = Candidate(cluster=own, batch=batch, variant=variant)
            ways.append((candidate, said.throughput_per_s))
    return ways


def test_nothing_in_the_whole_grid_is_better(pair: Cluster, found: Advice) -> None:
    ways = every_way(pair)
    best = max(per_s for _, per_s in ways)
    own = dict(ways)[found.candidate]
    assert own == pytest.approx(found.prediction.throughput_per_s)
    assert own >= best / (1 + CLOSE)
    # Of those as good, none makes nodes wait for each other's work less long.
    good = [way for way, per_s in ways if per_s >= best / (1 + CLOSE)]
    assert found.candidate.variant.staleness == min(way.variant.staleness for way in good)
    assert found.num_predictions < len(ways)


def test_gains_are_ratios_of_predictions(step: Step, pair: Cluster, found: Advice) -> None:
    plain = predict(step, cluster=pair, strategy="sync")
    first, *_, last = found.changes
    assert first.prediction.throughput_per_s == plain.throughput_per_s
    assert last.over_plain == pytest.approx(
        found.prediction.throughput_per_s / plain.throughput_per_s
    )
    product = 1.0
    for change in found.changes:
        product *= change.gain
        assert change.over_plain == pytest.approx(product)
        assert change.low <= change.over_plain <= change.high


def test_a_run_by_hand(found: Advice) -> None:
    run = found.prediction.run
    assert run is not None
    steps = -(-SAMPLES // found.candidate.global_batch)
    assert run.num_steps == steps
    # All steps but the few of warm-up and cool-down are alike.
    assert run.seconds == pytest.approx(steps * found.prediction.step_s, rel=0.02)
    nodes = found.candidate.cluster.num_nodes
    assert run.dollars == pytest.approx(run.seconds / 3600 * 2.0 * nodes)


def test_a_deadline_is_met_by_as_few_nodes_as_it_takes(step: Step, slow: Cluster) -> None:
    """Plain DDP alone, so that the cheapest way that is in time can be found by hand."""
    times = {}
    for nodes in (1, 2, 3):
        per_s = predict(step, cluster=slow.with_nodes(nodes), strategy="sync").throughput_per_s
        times[nodes] = SAMPLES / per_s
    dollars = {nodes: seconds / 3600 * 2.0 * nodes for nodes, seconds in times.items()}
    limit = sorted(times.values())[1] * 1.001  # two of the three are in time
    in_time = [nodes for nodes, seconds in times.items() if seconds <= limit]
    cheapest = min(dollars[nodes] for nodes in in_time)
    told = advise(
        step,
        cluster=slow,
        strategies=["sync"],
        samples=SAMPLES,
        deadline_s=limit,
        max_global_batch=32 * slow.num_workers,
    )
    run = told.prediction.run
    assert run is not None and run.dollars is not None
    assert [verdict.is_met for verdict in told.verdicts] == [True]
    assert run.dollars <= cheapest * (1 + CLOSE) * 1.001


def test_wishes_that_cannot_be_met_say_by_how_much(step: Step, slow: Cluster) -> None:
    told = advise(
        step,
        cluster=slow,
        strategies=["sync"],
        samples=SAMPLES,
        deadline_s=1.0,
        budget_dollars=1e-6,
    )
    run = told.prediction.run
    assert run is not None and run.dollars is not None
    late, dear = told.verdicts
    assert not late.is_met and not dear.is_met
    assert late.value == run.seconds and dear.value == run.dollars
    assert f"{run.seconds / 1.0:,.0f} times the limit" in late.sentence
    assert any("Both wishes together" in note for note in told.notes)


def test_the_better_of_two_clusters_is_named(step: Step, slow: Cluster) -> None:
    fast = priced("ethernet-10g", 3, 200.0).with_link(5e9).replace(name="fast")
    told = advise(step, cluster=[slow, fast], strategies=["sync"])
    assert told.candidate.cluster.name == "fast"
    assert told.changes[1].what == "on fast"
    thrifty = advise(
        step, cluster=[slow, fast], strategies=["sync"], samples=1000, deadline_s=86400.0
    )
    assert thrifty.candidate.cluster.name == slow.name


def test_plain_data_and_what_to_type(found: Advice) -> None:
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["strategy"] == found.candidate.variant.strategy
    assert plain["changes"][0]["what"] == "plain DDP"
    assert found.attach.startswith('pace = paceline.attach(model, optimizer, "')
    workers = found.candidate.cluster.node_kinds[0].workers_per_node
    assert f"--nproc-per-node {workers} " in found.commands["torchrun"]
    if found.candidate.variant.staleness:
        assert any("steps late" in caution for caution in found.cautions)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("8h", 28800), ("1h30m", 5400), ("2d", 172800), ("45 min", 2700), ("1.5h", 5400), ("90s", 90)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "8x", "h", "1h30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write it as 8h"):
        parse_time(text)


def test_a_verdict_says_when_the_range_is_too_wide() -> None:
    assert judge("deadline", 100.0, 90.0, 95.0).sentence.startswith(
        "The deadline of 0:01:40 is met:"
    )
    assert "not by the upper end" in judge("deadline", 100.0, 90.0, 110.0).sentence
    assert judge("budget", 1.0, 928.0, 990.0).sentence.endswith("too much (928 times the limit).")
    missed = judge("budget", 500.0, 612.0, 700.0)
    assert "which is 112.00 US dollars too much (22% more)" in missed.sentence


def test_bad_wishes() -> None:
    with pytest.raises(ValueError, match="give its number of samples"):
        Wishes(deadline_s=3600.0)
    with pytest.raises(ValueError, match="above 0"):
        Wishes(samples=0)


def test_bad_clusters(step: Step) -> None:
    with pytest.raises(ValueError, match="A budget needs prices, and dgx-h200 has none"):
        advise(step, cluster="dgx-h200", samples=10, budget_dollars=5.0)
    with pytest.raises(ValueError, match="it is 6 too few"):
        advise(step, cluster="dgx-h200", max_global_batch=2)


def test_numbers_of_nodes() -> None:
    assert node_counts(load_cluster("dgx-h200").with_nodes(50)) == [
        *range(1, 9), 12, 16, 24, 32, 48, 50,
    ]  # fmt: skip
    assert node_counts(load_cluster("mixed")) == [load_cluster("mixed").num_nodes]


def test_a_slow_node_is_judged() -> None:
    mixed = load_cluster("mixed")
    fast, slow = mixed.node_kinds
    own = mixed.replace(node_kinds=(fast, slow.replace(device=load_device("t4"))))
    step = zoo_step("resnet18", batch=64)
    found = advise(step, cluster=own, strategies=["sync"])
    # As one is to train: with other buckets here, with which that node hurts no more.
    advised = predict_mixed(step, cluster=own, **found.candidate.variant.options)
    assert advised.hindering == ()
    assert predict_mixed(step, cluster=own).hindering == ("workstation",)
    assert not any("hurt" in note for note in found.notes)
    expected = advised.notes()
    assert expected  # the nodes of that cluster differ enough for something to be said
    assert set(expected) <= set(found.notes)


def test_strategies_as_objects_are_tried_as_they_are() -> None:
    given = LocalSgd(period=12, wire="bf16")
    told = advise(zoo_step("small-cnn", batch=32), cluster="lab-2x2", strategies=[given])
    assert told.candidate.variant == Variant(
        strategy="local-sgd", options={"period": 12, "wire": "bf16"}
    )
    assert told.attach.endswith('"local-sgd", period=12, wire="bf16")')
    # Neither the periods that come with the name nor a narrower wire.
    assert not any("int8" in each.what for each in told.alternatives)


def test_a_strategy_without_a_name_cannot_be_advised(step: Step, pair: Cluster) -> None:
    class Nameless(LocalSgd):
        """Not registered."""

    with pytest.raises(ValueError, match=r"Nameless has no name.*register_strategy"):
        advise(step, cluster=pair, strategies=[Nameless(period=2)])


@pytest.mark.parametrize("wishes", [Wishes(), Wishes(samples=SAMPLES, deadline_s=1e-3)])
@pytest.mark.parametrize(("gain", "is_advised"), [(1.01, False), (1.2, True)])
def test_other_buckets_need_a_gain_that_can_be_told(
    step: Step, pair: Cluster, gain: float, is_advised: bool, wishes: Wishes
) -> None:
    search = Search(step=step, wishes=wishes, clusters=[pair], progress=lambda *_: None)
    plain = Candidate(cluster=pair, batch=32)
    other = replace(plain, variant=plain.variant.replaced(bucket_bytes=4 << 20))
    found = search.predicted(plain)
    search.found[other] = replace(found, throughput_per_s=gain * found.throughput_per_s)
    assert search.best() == (other if is_advised else plain)
