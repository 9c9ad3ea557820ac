"""A node whose values are not finite is refused, named and healed; the others never notice."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import workloads
from jobs import DEVICE, run_job
from paceline.strategies.wire import WireName
from paceline.teams import Workers
from paceline.train import attach

SICK_AT = 6
NUM_STEPS = 12


def slope(rank: int) -> float:
    return 1.0 + 3.0 * rank


def drift(
    workers: Workers, strategy: str, options: dict[str, Any], sick: dict[int, float]
) -> tuple[list[float], list[str]]:
    """Values by step and warnings; before step SICK_AT, some nodes' values break."""
    model, optimizer = workloads.build_drift(5)
    pace = attach(model, optimizer, strategy, workers=workers, **options)
    values = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, NUM_STEPS + 1):
            if step == SICK_AT and workers.node_index in sick:
                model.values.detach()[3] = sick[workers.node_index]
            optimizer.zero_grad()
            torch.autograd.backward(model(slope(workers.node_index)))
            optimizer.step()
            values.append(model.values[3].item())
    pace.detach()
    return values, [
        str(warning.message) for warning in caught if warning.category is RuntimeWarning
    ]


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize(
    ("nodes", "sick"),
    [((1, 1, 1), {1: float("nan")}), ((2, 2), {0: float("inf")}), ((1, 2, 1), {0: float("-inf")})],
)
def test_a_sick_node_is_refused_named_and_healed(
    nodes: tuple[int, ...], sick: dict[int, float], wire: WireName
) -> None:
    results = run_job(drift, "local-sgd", {"period": 1, "wire": wire}, sick, nodes=nodes)
    num_nodes = len(nodes)
    # Each node counts as many times as it has workers.
    slopes = [slope(node) for node, size in enumerate(nodes) for _ in range(size)]
    mean = sum(slopes) / len(slopes)
    healthy = [
        slope(node) for node, size in enumerate(nodes) for _ in range(size) if node not in sick
    ]
    mean_of_healthy = sum(healthy) / len(healthy)
    for values, messages in results:
        # Everybody, the sick node too, goes on from the healthy nodes' average.
        expected = [mean * step for step in range(1, SICK_AT)]
        expected.append(expected[-1] + mean_of_healthy)
        expected += [expected[-1] + mean * (i + 1) for i in range(NUM_STEPS - SICK_AT)]
        assert values == pytest.approx(expected, rel=0.02 if wire != "fp32" else 1e-6)
        assert values == results[0][0]
        (message,) = messages
        named = [node for node in range(num_nodes) if f"node {node} (" in message]
        assert named == list(sick)
        assert f"step {SICK_AT}" in message


@pytest.mark.parametrize("wire", ["fp32", "int8"])
def test_where_all_nodes_are_sick_nothing_is_merged(wire: WireName) -> None:
    sick = {0: float("nan"), 1: float("inf")}
    results = run_job(drift, "local-sgd", {"period": 2, "wire": wire}, sick, nodes=(2, 1))
    for rank, (values, messages) in enumerate(results):
        own = sick[0 if rank < 2 else 1]
        assert all(str(value) == str(own) for value in values[SICK_AT - 1 :])
        assert all("node 0 (" in message and "node 1 (" in message for message in messages)
        assert len(messages) == len([6, 8, 10, 12])


@pytest.mark.parametrize("merge", ["stale", "corrected"])
def test_late_merges_leave_the_sick_node_out(merge: str) -> None:
    # Starts at 6 and 12, merges two steps later.
    options = {"period": 6, "delay": 2, "merge": merge, "warmup_steps": 0, "late": "wait"}
    results = run_job(drift, "daso", options, {2: float("nan")}, nodes=(1, 1, 1))
    sent = [6 * slope(node) for node in (0, 1)]
    for node in (0, 1):
        values = results[node][0]
        now = 8 * slope(node)
        expected = (
            (4 * now + sum(sent)) / (4 + 2)
            if merge == "stale"
            else sum(sent) / 2 + (now - sent[node])
        )
        assert values[7] == pytest.approx(expected, rel=1e-6)
    # The sick node has nothing to keep: it takes the average as it is.
    assert results[2][0][7] == pytest.approx(sum(sent) / 2, rel=1e-6)
    assert [len(messages) for _, messages in results] == [1, 1, 1]


def break_while_waiting(workers: Workers) -> list[float]:
    """Sends finite values, breaks before the merge, and is healed by the next exchange."""
    model, optimizer = workloads.build_drift()
    pace = attach(
        model, optimizer, "daso", workers=workers, period=4, delay=2, warmup_steps=0, late="wait"
    )
    values = []
    for step in range(1, 13):
        if step == 5 and workers.node_index == 0:
            model.values.detach().fill_(float("nan"))
        optimizer.zero_grad()
        torch.autograd.backward(model(slope(workers.node_index)))
        optimizer.step()
        values.append(model.values.item())
    pace.detach()
    return values


@pytest.mark.filterwarnings("ignore:non-finite")
def test_a_node_that_breaks_while_waiting_is_healed_at_the_next_exchange() -> None:
    broken, sound = run_job(break_while_waiting, nodes=(1, 1))
    assert all(value != value for value in broken[4:9])
    assert broken[9] == pytest.approx(sound[7])  # what the other node sent at step 8
    assert all(value == value for value in sound)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("diloco", {"period": 2}),
        ("streaming-diloco", {"period": 2, "fragments": 1, "delay": 1}),
        ("post-local-sgd", {"period": 2, "sync_steps": 2}),
    ],
)
def test_every_exchange_refuses_what_is_not_finite(strategy: str, options: dict[str, Any]) -> None:
    results = run_job(drift, strategy, options, {1: float("nan")}, nodes=(2, 2))
    for values, messages in results[:2]:
        assert all(value == value for value in values)
        assert all("node 1 (" in message for message in messages)
        assert messages
    for values, _ in results[2:]:
        assert values[-1] == values[-1]


class Masked(torch.nn.Module):
    """Statistics that may break, and a mask that is infinite by right."""

    mask: torch.Tensor
    statistics: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("statistics", torch.ones(3))

    def forward(self, slope: float) -> torch.Tensor:
        return -(self.values * slope).sum()


def drift_with_statistics(
    workers: Workers, options: dict[str, Any], are_parameters_sick: bool
) -> list[list[float]]:
    """Statistics after every step, and the mask at the end."""
    model = Masked().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    with attach(model, optimizer, "daso", workers=workers, warmup_steps=0, **options):
        for step in range(1, 9):
            if step == 4 and workers.node_index == 1:
                if are_parameters_sick:
                    model.values.detach().fill_(float("nan"))
                    model.statistics.fill_(1000.0)  # finite, and worth as little
                else:
                    model.statistics[1] = float("nan")
            optimizer.zero_grad()
            torch.autograd.backward(model(1.0))
            model.statistics += 1.0 + workers.node_index
            optimizer.step()
            seen.append(model.statistics.tolist())
    return [*seen, model.statistics.tolist(), model.mask.tolist()]


@pytest.mark.filterwarnings("ignore:non-finite")
@pytest.mark.parametrize("are_parameters_sick", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_broken_statistics_are_refused_as_well(delay: int, are_parameters_sick: bool) -> None:
    options = {"period": 2, "delay": delay, "late": "wait"}
    results = run_job(drift_with_statistics, options, are_parameters_sick, nodes=(2, 2))
    for rank, (*seen, end, mask) in enumerate(results):
        assert mask == [0.0, float("-inf")]
        assert all(value == value for value in end)
        assert end == results[0][-2]
        assert max(end) < 100
        if rank < 2:
            # The healthy node's own statistics are never touched by the broken ones.
            assert all(value < 100 for values in seen for value in values)


def train_through_a_bad_batch(
    workers: Workers, strategy: str, options: dict[str, Any], optimizer_kind: str
) -> tuple[torch.Tensor, list[bool], list[str]]:
    """One batch of one node is NaN; the end, where the node was well, and what was warned of."""
    model, optimizer = workloads.build("plain", optimizer_kind)
    was_well = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with attach(model, optimizer, strategy, workers=workers, **options):
            for step in range(60):
                optimizer.zero_grad()
                loss = workloads.batch_loss(model, step, workers.world.rank)
                is_bad = step == 21 and workers.node_index == 1
                torch.autograd.backward(loss * (float("nan") if is_bad else 1.0))
                optimizer.step()
                was_well.append(bool(workloads.flat_state(model).isfinite().all()))
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return workloads.flat_state(model), was_well, said


@pytest.mark.parametrize("optimizer_kind", ["adamw", "momentum"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("local-sgd", {"period": 4}),
        ("daso", {"warmup_steps": 0, "period": 4, "delay": 1, "late": "wait"}),
        ("diloco", {"period": 4}),
    ],
)
def test_one_bad_batch_is_one_refusal(
    strategy: str, options: dict[str, Any], optimizer_kind: str
) -> None:
    results = run_job(train_through_a_bad_batch, strategy, options, optimizer_kind, nodes=(2, 1))
    for rank, (end, was_well, said) in enumerate(results):
        assert torch.equal(end, results[0][0])
        assert end.isfinite().all()
        assert sum("were refused" in text for text in said) == 1
        is_sick = rank == 2
        # From the 22nd step to the exchange of the 24th, which may be merged later.
        assert was_well.count(False) == (2 + options.get("delay", 0) if is_sick else 0)
        resets = [text for text in said if "was reset" in text]
        assert len(resets) == is_sick
        assert all("node 1 (" in text and "4 parameters" in text for text in resets)
