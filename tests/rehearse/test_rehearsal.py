"""The strategies' own code in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jobs import run_job
from paceline.cluster import Cluster, Link, load_cluster
from paceline.cluster.devices import load_device
from paceline.collectives import Route, Topology
from paceline.kernels.model import KernelModel
from paceline.rehearse import Conditions, Rehearsal
from paceline.rehearse.compute import compute_cost
from paceline.rehearse.record_worker import WorkerRecording
from paceline.steps import Step, zoo_step
from paceline.strategies import Strategy, register_strategy
from paceline.strategies.registry import _STRATEGIES
from paceline.teams import Workers
from paceline.teams.journal import BackgroundWork, Collective
from paceline.train.buckets import group_parameters


def first_node(rehearsal: Rehearsal) -> tuple[WorkerRecording, ...]:
    recording = rehearsal.record()
    return recording.workers[recording.node_sizes[0]]


def begun(rehearsal: Rehearsal, worker: int, step: int) -> list[Collective]:
    """The collectives of a step, those of the background too."""
    found: list[Collective] = []
    for event in first_node(rehearsal)[worker].steps[step]:
        events = event.events if isinstance(event, BackgroundWork) else (event,)
        found += [each for each in events if isinstance(each, Collective)]
    return found


def test_sync_reduces_every_gradient_once_a_step() -> None:
    step = zoo_step("small-cnn", batch=8)
    rehearsal = Rehearsal(step, "sync", node_sizes=(2, 2))
    parameters = sum(p.numel() for p in step.model.parameters())
    num_tensors = len(list(step.model.parameters()))
    statistics = sum(b.numel() for b in step.model.buffers() if b.is_floating_point())
    for number in (0, 3, 7):
        reduced = [each for each in begun(rehearsal, 0, number) if each.num_bytes > 4096]
        assert all((each.team, each.kind) == ("world", "all_reduce") for each in reduced)
        # Behind the gradients each bucket has one number a parameter and one more; batch norm's
        # statistics are averaged too.
        num_buckets = len(group_parameters(list(step.model.parameters())))
        wanted = 4 * (parameters + num_tensors + num_buckets + statistics)
        assert sum(each.num_bytes for each in reduced) == wanted


@pytest.mark.parametrize("bucket_bytes", [1, 200_000, 100 << 20])
def test_buckets_have_the_size_that_is_asked_for(bucket_bytes: int) -> None:
    step = zoo_step("small-cnn", batch=8)
    rehearsal = Rehearsal(step, "sync", node_sizes=(2, 2), bucket_bytes=bucket_bytes)
    reduced = [each for each in begun(rehearsal, 0, 3) if each.team == "world"]
    # By hand: the last parameters first, and a new bucket whenever one is full.
    filled, limit = [0], min(bucket_bytes, 1 << 20)
    for parameter in reversed(list(step.model.parameters())):
        if filled[-1] >= limit:
            filled.append(0)
            limit = bucket_bytes
        filled[-1] += parameter.nbytes
    sizes = [each.num_bytes for each in reduced]
    for own in filled:  # and one number per parameter, and one more
        assert any(own < size <= own + 4 * 50 for size in sizes)
    assert len(reduced) - len(filled) <= 1  # batch norm's statistics


def test_daso_takes_turns_across_and_in_the_background() -> None:
    step = zoo_step("small-cnn", batch=8)
    rehearsal = Rehearsal(step, "daso", node_sizes=(2,) * 4, warmup_steps=0, period=2, delay=1)
    talkers = []
    for number in range(len(first_node(rehearsal)[0].steps)):
        across = [
            worker
            for worker in range(2)
            if any(each.team == "across" for each in begun(rehearsal, worker, number))
        ]
        talkers += across
    assert talkers[:6] == [0, 1, 0, 1, 0, 1]


def test_a_slow_link_hurts_sync_and_not_daso() -> None:
    step = zoo_step("small-cnn", batch=64)
    slow = load_cluster("local").with_link(100e6 / 8).with_workers_per_node(2).with_nodes(2)
    model = KernelModel(load_device("cpu-core"))
    times = {
        name: Rehearsal(step, name, node_sizes=(2, 2)).time(slow, model).step_s
        for name in ("sync", "daso")
    }
    assert times["sync"] > 2 * times["daso"]


class EveryThird(Strategy):
    """Averages parameters over all workers in every third step."""

    summary = "a strategy that nothing in paceline knows"

    def after_step(self) -> None:
        super().after_step()
        if self.step % 3 == 0:
            for parameter in self.replica.parameters:
                self.wait(self.workers.world.all_reduce(parameter.data, "mean"))


def train_every_third(workers: Workers) -> list[torch.Tensor]:
    from paceline.train import attach

    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer, EveryThird(), workers=workers)
    torch.manual_seed(workers.world.rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.fixture
def every_third() -> Iterator[str]:
    register_strategy("every-third")(EveryThird)
    yield "every-third"
    _STRATEGIES.pop("every-third")


def test_a_strategy_of_ones_own_trains_and_is_rehearsed(every_third: str) -> None:
    results: Any = run_job(train_every_third, nodes=(1, 1))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)

    step = Step(
        model=nn.Linear(4, 3),
        inputs=torch.empty(5, 4),
        loss=lambda output, _: output.square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    rehearsal = Rehearsal(step, every_third, node_sizes=(1, 1))
    talk = [len(begun(rehearsal, 0, number)) for number in range(6)]
    assert talk == [0, 0, 2, 0, 0, 2]
    assert sum(each.num_bytes for each in begun(rehearsal, 0, 2)) == 4 * (12 + 3)


class Pairs(Strategy):
    """Neighbours swap parameters and take the mean: in odd steps 0 and 1, in even steps 1 and 2."""

    def after_step(self) -> None:
        super().after_step()
        world = self.workers.world
        is_up = (world.rank + self.step) % 2 == 1  # whose neighbour is the next one
        peer = (world.rank + (1 if is_up else -1)) % world.size
        for parameter in self.replica.parameters:
            other = torch.empty_like(parameter.data)
            receiving = world.receive(other, peer)
            self.wait(world.send(parameter.data, peer))
            self.wait(receiving)
            parameter.data.add_(other).div_(2)


def train_in_pairs(workers: Workers) -> torch.Tensor:
    from paceline.train import attach

    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    attach(model, optimizer, Pairs(), workers=workers)
    with torch.no_grad():
        model.weight.fill_(float(workers.world.rank))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return model.weight.detach()[0, 0]


def test_a_strategy_of_messages_trains_and_is_rehearsed() -> None:
    """In odd steps messages stay in the nodes, in even ones they share the nodes' cards."""
    # 0 1 2 3, then 0.5 0.5 2.5 2.5, then 1.5 for all.
    for value in run_job(train_in_pairs, nodes=(2, 2)):
        assert float(value) == 1.5

    num_bytes, link_bytes_per_s = 4 * 400 * 300, 1e6
    step = Step(
        model=nn.Linear(400, 300, bias=False),
        inputs=torch.empty(2, 400),
        loss=lambda output, _: output.square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    for size, sharing in ((1, 1), (2, 2), (4, 2)):
        cluster = across_cluster(link_bytes_per_s, (size,) * 4)
        rehearsal = Rehearsal(step, Pairs(), node_sizes=(size,) * 4)
        steps_s = rehearsal.time(cluster, KernelModel(load_device("cpu-core"))).steps_s
        outward_s = sharing * num_bytes / link_bytes_per_s
        inside_s = steps_s[0] if size > 1 else steps_s[0] - outward_s
        assert inside_s < 0.01
        assert steps_s[1::2] == pytest.approx(inside_s + outward_s, rel=1e-3)


class First(Strategy):
    """The first worker of each node averages with those of the others."""

    def after_step(self) -> None:
        super().after_step()
        if self.workers.node.rank == 0:
            for parameter in self.replica.parameters:
                self.wait(self.workers.across.all_reduce(parameter.data, "mean"))


class AcrossRing(Strategy):
    """Everybody sends to the same place of the next node that has it."""

    def after_step(self) -> None:
        super().after_step()
        across = self.workers.across
        for parameter in self.replica.parameters if across.size > 1 else ():
            other = torch.empty_like(parameter.data)
            receiving = across.receive(other, (across.rank - 1) % across.size)
            self.wait(across.send(parameter.data, (across.rank + 1) % across.size))
            self.wait(receiving)


class FarSide(Strategy):
    """Workers of one half of a node swap with those of the other half."""

    def after_step(self) -> None:
        super().after_step()
        node = self.workers.node
        peer = (node.rank + node.size // 2) % node.size
        for parameter in self.replica.parameters:
            receiving = node.receive(torch.empty_like(parameter.data), peer)
            self.wait(node.send(parameter.data, peer))
            self.wait(receiving)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (4, 2, 2)])
@pytest.mark.parametrize(("strategy", "talkers"), [(First, 1), (AcrossRing, 2)])
def test_nodes_of_unequal_size_share_their_own_cards(
    sizes: tuple[int, ...], strategy: type[Strategy], talkers: int
) -> None:
    """The others of the larger node have nobody to talk to, and take nothing of its card."""
    step = Step(
        model=nn.Linear(400, 300, bias=False),
        inputs=torch.empty(2, 400),
        loss=lambda output, _: output.square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    timed = Rehearsal(step, strategy(), node_sizes=sizes).time(
        across_cluster(1e6, sizes), KernelModel(load_device("cpu-core"))
    )
    passes = 2 * (1 - 1 / len(sizes)) if strategy is First else 1
    talk_s = passes * talkers * 4 * 400 * 300 / 1e6
    assert timed.steps_s == pytest.approx(talk_s, rel=0.01)


def test_workers_that_swap_over_a_distance_are_all_played() -> None:
    """The first two do alike, the others the other way round."""
    step = zoo_step("mlp", batch=2)
    rehearsal = Rehearsal(step, FarSide(), node_sizes=(4, 4))
    assert not rehearsal.record().is_uniform
    rehearsal.time(across_cluster(1e6, (4, 4)), KernelModel(load_device("cpu-core")))


def test_timing_many_at_once_where_some_talk_to_nobody() -> None:
    step = zoo_step("mlp", batch=2)
    rehearsal = Rehearsal(step, First(), node_sizes=(2, 2))
    model = KernelModel(load_device("cpu-core"))
    free = Route(latency_s=0.0, bandwidth_bytes_per_s=1e15)

    def topology(bandwidth: Any) -> Topology:
        between = Route(latency_s=0.0, bandwidth_bytes_per_s=bandwidth)
        return Topology(num_nodes=2, workers_per_node=2, inside=free, between=between)

    bandwidths = np.array([1e6, 1e7])
    many = rehearsal.retime(Conditions(topology=topology(bandwidths), jitter=0.0), model)
    for place, bandwidth in enumerate(bandwidths):
        one = rehearsal.retime(Conditions(topology=topology(bandwidth), jitter=0.0), model)
        assert many.steps_s[:, place] == pytest.approx(one.steps_s)


def across_cluster(link_bytes_per_s: float, node_sizes: tuple[int, ...]) -> Cluster:
    base = load_cluster("lab-2x2").node_kinds[0]
    free = Link(latency_s=0.0, bandwidth_bytes_per_s=1e15)
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=link_bytes_per_s, shared=True)
    nodes = tuple(
        base.replace(name=f"n{place}", count=1, workers=size, inside=free, between=link, jitter=0.0)
        for place, size in enumerate(node_sizes)
    )
    return Cluster(name="given", node_kinds=nodes)


def test_an_exchange_that_is_late_is_merged_when_it_has_come() -> None:
    """With B = 4, W = 1: an exchange of three steps' length holds up nobody, one of six does."""
    step = zoo_step("small-cnn", batch=64)
    model = KernelModel(load_device("cpu-core"))
    rehearsal = Rehearsal(step, "daso", node_sizes=(1, 1), warmup_steps=0)
    alone_s = compute_cost(rehearsal.capture, model).timeline.step_s
    exchanged = sum(each.num_bytes for each in begun(rehearsal, 0, 3))
    for num_steps, expected in ((0.5, 1.0), (3.0, 1.0), (6.0, 6.0 / 4)):
        # Two workers: a ring moves each byte once.
        cluster = across_cluster(exchanged / (num_steps * alone_s), (1, 1))
        step_s = float(rehearsal.time(cluster, model).step_s)
        assert step_s / alone_s == pytest.approx(expected, rel=0.12)
    waits = Rehearsal(step, "daso", node_sizes=(1, 1), warmup_steps=0, late="wait")
    cluster = across_cluster(exchanged / (3.0 * alone_s), (1, 1))
    waiting_s = float(waits.time(cluster, model).step_s)
    assert waiting_s / alone_s == pytest.approx((4 + 3 - 1) / 4, rel=0.12)


def test_what_one_worker_of_each_node_sends_takes_its_own_share_of_computing() -> None:
    """An exchange of two steps' length, every fourth step, that takes 0.6 of computing's speed."""
    step = zoo_step("small-cnn", batch=64)
    model = KernelModel(load_device("cpu-core"))
    rehearsal = Rehearsal(step, "daso", node_sizes=(2, 2), warmup_steps=0)
    alone_s = compute_cost(rehearsal.capture, model).timeline.step_s
    # Two nodes: a ring moves each byte once, and the first worker of each carries the exchange.
    exchanged = sum(each.num_bytes for each in begun(rehearsal, 0, 3) if each.team == "across")
    cluster = across_cluster(exchanged / (2 * alone_s), (2, 2))

    def step_s(**interference: float | None) -> float:
        nodes = [n.replace(between=n.between.replace(**interference)) for n in cluster.node_kinds]
        return float(rehearsal.time(cluster.replace(node_kinds=tuple(nodes)), model).step_s)

    lost = (step_s(interference=0.9, lone_interference=0.6) - step_s()) / alone_s
    assert lost == pytest.approx(0.6 * 2 / 4, rel=0.1)
    # Not told, it is taken for a half of what all of a node's two workers take.
    assert step_s(interference=0.9) == step_s(interference=0.9, lone_interference=0.45)


@pytest.mark.parametrize(("name", "period"), [("local-sgd", 8), ("diloco", 32), ("sync", 1)])
def test_a_rare_exchange_counts_with_its_share(name: str, period: int) -> None:
    step = zoo_step("small-cnn", batch=64)
    model = KernelModel(load_device("cpu-core"))
    rehearsal = Rehearsal(step, name, node_sizes=(1, 1))
    alone_s = compute_cost(rehearsal.capture, model).timeline.step_s
    num_bytes = sum(each.num_bytes for each in begun(rehearsal, 0, period - 1))
    # So slow that all the rest is small: a ring of two moves each byte once.
    timed = rehearsal.time(across_cluster(num_bytes / (100 * alone_s), (1, 1)), model)
    assert float(timed.step_s) / alone_s == pytest.approx(100 / period + 1, rel=0.05)


def test_every_phase_of_a_run_is_rehearsed() -> None:
    step = zoo_step("mlp", batch=4)
    options: dict[str, Any] = {"warmup_steps": 500, "cooldown_steps": 300, "total_steps": 100_000}
    rehearsal = Rehearsal(step, "daso", node_sizes=(1, 1), **options)
    assert set(rehearsal.record().phases) == {"warm-up", "cycling", "cool-down"}
    timed = rehearsal.time(across_cluster(1e5, (1, 1)), KernelModel(load_device("cpu-core")))
    phases = timed.phases_s
    assert phases["warm-up"] == pytest.approx(phases["cool-down"])
    assert phases["warm-up"] > 2 * phases["cycling"]


def test_unequal_nodes_wait_for_the_slow_one() -> None:
    step = zoo_step("small-cnn", batch=64)
    model = KernelModel(load_device("cpu-core"))
    rehearsal = Rehearsal(step, "sync", node_sizes=(2, 1))
    equal = across_cluster(1e15, (2, 1))
    slow = equal.replace(
        node_kinds=(equal.node_kinds[0], equal.node_kinds[1].replace(slowdown=3.0))
    )
    equal_s, slow_s = (float(rehearsal.time(each, model).step_s) for each in (equal, slow))
    assert slow_s / equal_s == pytest.approx(3.0, rel=0.02)


def test_timing_many_at_once_is_timing_each() -> None:
    step = zoo_step("small-cnn", batch=64)
    model = KernelModel(load_device("cpu-core"))
    cases: list[tuple[str, dict[str, Any]]] = [("sync", {}), ("daso", {"warmup_steps": 0})]
    for strategy, options in cases:
        rehearsal = Rehearsal(step, strategy, node_sizes=(2, 2), **options)
        rates = np.geomspace(1e6, 1e9, 7)
        route = Route(latency_s=1e-4, bandwidth_bytes_per_s=rates)
        inside = Route(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
        topology = Topology(num_nodes=4, workers_per_node=2, inside=inside, between=route)
        factors = np.linspace(0.5, 2.0, 7)
        many = rehearsal.retime(
            Conditions(topology=topology, arithmetic=factors, memory=factors), model
        )
        for place, rate in enumerate(rates):
            alone = replace(topology, between=replace(route, bandwidth_bytes_per_s=rate))
            conditions = Conditions(
                topology=alone, arithmetic=factors[place], memory=factors[place]
            )
            one = rehearsal.retime(conditions, model)
            assert np.asarray(many.step_s)[place] == pytest.approx(float(one.step_s))


def test_a_worker_that_differs_from_its_neighbours_keeps_the_number_of_workers() -> None:
    rehearsal = Rehearsal(zoo_step("mlp", batch=4), "daso", node_sizes=(2, 2))
    route = Route(latency_s=1e-4, bandwidth_bytes_per_s=1e8)
    topology = Topology(num_nodes=4, workers_per_node=8, inside=route, between=route)
    with pytest.raises(ValueError, match="this rehearsal has 2"):
        rehearsal.retime(Conditions(topology=topology), KernelModel(load_device("cpu-core")))


def test_the_users_step_is_untouched() -> None:
    model = nn.Linear(4, 3)
    before = [parameter.clone() for parameter in model.parameters()]
    step = Step(model=model, inputs=torch.empty(5, 4), loss=lambda output, _: output.sum())
    Rehearsal(step, "daso", node_sizes=(1, 1)).record()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert not model._forward_pre_hooks


def test_a_bad_option_is_named() -> None:
    with pytest.raises(ValueError, match="perod"):
        Rehearsal(zoo_step("mlp", batch=4), "daso", node_sizes=(1, 1), perod=3)
