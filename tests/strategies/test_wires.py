"""Narrow wires: what they round, what they carry on, and what they save."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workloads
from jobs import DEVICE, run_job
from paceline.strategies.wire import _CODECS, WireName
from paceline.teams import Workers
from paceline.teams.background import Background
from paceline.teams.group import GroupTeam
from paceline.teams.workers import form_workers
from paceline.train import attach

NARROW: list[WireName] = ["bf16", "fp16", "int8"]
BLOCK = 1024  # of int8's scales


def round_trip(name: WireName, values: torch.Tensor) -> torch.Tensor:
    return _CODECS[name].decode(_CODECS[name].encode(values))


@st.composite
def value_blocks(draw: st.DrawFn) -> torch.Tensor:
    """Blocks of values over many magnitudes, some of them zero."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    size = BLOCK * draw(st.integers(1, 3))
    exponents = torch.empty(size).uniform_(-9, draw(st.integers(-8, 4)), generator=generator)
    values = torch.randn(size, generator=generator) * 10**exponents
    values[torch.rand(size, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = 0.0
    return values


@settings(deadline=None)
@given(value_blocks())
def test_codecs_round_to_the_nearest(values: torch.Tensor) -> None:
    def error(name: WireName) -> torch.Tensor:
        return (round_trip(name, values) - values).abs()

    assert (error("bf16") <= values.abs() * 2.0**-8).all()
    # Half of fp16's last place, and of its smallest number near zero.
    inside = values.abs() < 65_000
    assert (error("fp16")[inside] <= (values.abs() * 2.0**-11 + 2.0**-25)[inside]).all()
    largest = values.view(-1, BLOCK).abs().amax(dim=1, keepdim=True).expand(-1, BLOCK).flatten()
    assert (error("int8") <= largest / 254 * 1.001).all()
    # Zero stays zero: what does not change is not changed.
    for name in NARROW:
        assert (round_trip(name, values)[values == 0] == 0).all()


def test_fp16_never_makes_infinity() -> None:
    values = torch.tensor([1e6, -1e30, 65_504.0]).repeat(BLOCK)
    assert round_trip("fp16", values)[:3].tolist() == [65_504.0, -65_504.0, 65_504.0]


def test_int8_messages_are_a_quarter_and_its_scales_a_fraction() -> None:
    assert _CODECS["int8"].encode(torch.randn(64 * BLOCK)).numel() == 64 * (BLOCK + 4)


# A step's true changes differ ten-thousandfold inside each block: int8 alone cannot see the small.
NUM_VALUES = 2_500


def slopes(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    sizes = 10 ** (-4 * torch.rand(NUM_VALUES, generator=generator))
    signs = torch.sign(torch.randn(NUM_VALUES, generator=generator))
    return (sizes * signs * (1 + 0.1 * rank)).to(DEVICE)


def mean_by_workers(values: Sequence[torch.Tensor], nodes: tuple[int, ...]) -> torch.Tensor:
    """The nodes' mean; each counts as many times as it has workers."""
    weighted = [size * value.cpu() for size, value in zip(nodes, values, strict=True)]
    return torch.stack(weighted).sum(dim=0) / sum(nodes)


def true_drift(nodes: tuple[int, ...]) -> torch.Tensor:
    """The mean of all workers' slopes: what one large batch would give."""
    return torch.stack([slopes(rank) for rank in range(sum(nodes))]).mean(dim=0).cpu()


STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "blocking": ("local-sgd", {"period": 1}),
    "corrected": (
        "daso",
        {"period": 2, "delay": 2, "merge": "corrected", "late": "wait", "warmup_steps": 0},
    ),
    "stale": (
        "daso",
        {"period": 2, "delay": 2, "merge": "stale", "late": "wait", "warmup_steps": 0},
    ),
}


def drift_all(workers: Workers, num_steps: int, chunk_bytes: int) -> dict[str, list[torch.Tensor]]:
    """This worker's values after every tenth step, for every strategy and wire."""
    results = {}
    for name, (strategy, options) in STRATEGIES.items():
        for wire in ("fp32", *NARROW):
            model, optimizer = workloads.build_drift(NUM_VALUES)
            pace = attach(
                model,
                optimizer,
                strategy,
                workers=workers,
                wire=wire,
                chunk_bytes=chunk_bytes,
                **options,
            )
            values = []
            for step in range(1, num_steps + 1):
                optimizer.zero_grad()
                torch.autograd.backward(model(slopes(workers.world.rank)))
                optimizer.step()
                if step % 10 == 0:
                    values.append(model.values.detach().cpu().clone())
            pace.detach()
            results[f"{name}-{wire}"] = values
    return results


@pytest.mark.parametrize(
    ("nodes", "chunk_bytes"), [((2, 2), 4 * 900), ((2, 1, 2), 1 << 20), ((1, 1, 1, 1), 4 * 2_049)]
)
def test_what_rounding_takes_is_carried_to_the_next_exchange(
    nodes: tuple[int, ...], chunk_bytes: int
) -> None:
    num_steps = 30
    by_worker = run_job(drift_all, num_steps, chunk_bytes, nodes=nodes)
    firsts = [sum(nodes[:node]) for node in range(len(nodes))]
    true_mean = true_drift(nodes)
    for name in STRATEGIES:
        for wire in NARROW:
            # One exchange carries the change of at most three steps (under ``stale`` also a node's
            # distance from the mean), and each of its two rounds may be off by half a last place.
            last_place = {"bf16": 2.0**-8, "fp16": 2.0**-11, "int8": 1 / 127}[wire]
            bound = 6.0 * last_place
            runs = [by_worker[rank][f"{name}-{wire}"] for rank in firsts]
            exact = [by_worker[rank][f"{name}-fp32"] for rank in firsts]
            for i in range(num_steps // 10):
                mean = mean_by_workers([run[i] for run in runs], nodes)
                exact_mean = mean_by_workers([run[i] for run in exact], nodes)
                # Just as close at the end as at the beginning.
                assert (mean - exact_mean).abs().max() < bound, (name, wire, i)
                # The stale merge sets nodes back a little; the others follow the true mean.
                if name != "stale":
                    expected = 10 * (i + 1) * true_mean
                    assert (exact_mean - expected).abs().max() < 5e-4, name
    for wire in NARROW:
        # Blocking exchanges leave all workers equal, to the bit.
        values = [run[f"blocking-{wire}"][-1] for run in by_worker]
        assert all(torch.equal(value, values[0]) for value in values)


@pytest.mark.parametrize("name", NARROW)
def test_without_feedback_the_error_would_grow(name: WireName) -> None:
    """The measure of the test above: the same drift, rounded at each step and forgotten."""
    change = torch.nn.functional.pad(slopes(0).cpu(), (0, -NUM_VALUES % BLOCK))
    lost = (round_trip(name, change) - change).abs().max()
    last_place = {"bf16": 2.0**-8, "fp16": 2.0**-11, "int8": 1 / 127}[name]
    assert 30 * lost > 6.0 * last_place


def exchange_still_weights(workers: Workers) -> list[bool]:
    """Whether weights that do not change come out of narrow exchanges as they went in."""
    answers = []
    for wire in NARROW:
        model, optimizer = workloads.build("plain", "momentum")
        before = workloads.flat_state(model)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        pace = attach(model, optimizer, "local-sgd", workers=workers, wire=wire, period=1)
        for step in range(5):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()
        pace.finish()
        pace.detach()
        answers.append(torch.equal(workloads.flat_state(model), before))
    return answers


def test_weights_themselves_are_not_rounded() -> None:
    for answers in run_job(exchange_still_weights, nodes=(2, 2)):
        assert all(answers)


class InOrder(GroupTeam):
    """A team whose messages come in the order that NCCL wants."""

    num_asked = 0

    @property
    def keeps_order(self) -> bool:
        InOrder.num_asked += 1
        return True


def drift_in_order(workers: Workers) -> list[torch.Tensor]:
    """Where values are after a few exchanges: messages in NCCL's order, and as Gloo likes them."""
    results = []
    background = workers.background
    assert isinstance(background.across, GroupTeam)
    ordered = dataclasses.replace(background, across=InOrder(background.across.group))
    in_order = dataclasses.replace(workers, background=ordered)
    for own in (in_order, workers):
        model, optimizer = workloads.build_drift(NUM_VALUES)
        pace = attach(model, optimizer, "local-sgd", workers=own, wire="int8", period=1)
        for _ in range(4):
            optimizer.zero_grad()
            torch.autograd.backward(model(slopes(workers.world.rank)))
            optimizer.step()
        pace.detach()
        results.append(model.values.detach().cpu().clone())
    assert InOrder.num_asked > 0
    return results


def test_the_order_of_messages_changes_nothing() -> None:
    for in_order, receive_first in run_job(drift_in_order, nodes=(1, 1, 1)):
        assert torch.equal(in_order, receive_first)
        assert in_order.abs().max() > 0


def train_with(workers: Workers, strategy: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """The end of a training, for every wire."""
    ends = []
    for wire in ("fp32", *NARROW):
        model, optimizer = workloads.build("plain", "adamw")
        with attach(model, optimizer, strategy, workers=workers, wire=wire, **options):
            for step in range(40):
                optimizer.zero_grad()
                torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
                optimizer.step()
        ends.append(workloads.flat_state(model))
    return ends


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("local-sgd", {"period": 3}),
        ("daso", {"late": "wait"}),
        ("daso", {"late": "wait", "merge": "stale", "delay": 3}),
        ("diloco", {"period": 5}),
        ("streaming-diloco", {"period": 6, "fragments": 2}),
    ],
)
def test_training_over_a_narrow_wire_follows_fp32(strategy: str, options: dict[str, Any]) -> None:
    for exact, *ends in run_job(train_with, strategy, options, nodes=(2, 1)):
        moved = (exact - workloads.flat_state(workloads.build_model("plain"))).abs().max()
        for wire, end in zip(NARROW, ends, strict=True):
            assert (end - exact).abs().max() < 0.02 * moved, wire


def bytes_across(workers: Workers) -> list[int]:
    """What five exchanges hand over, for every wire."""
    counts = []
    for wire in ("fp32", *NARROW):
        model = torch.nn.Linear(500, 400, device=DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = attach(model, optimizer, "local-sgd", workers=workers, wire=wire, period=1)
        before = workers.background.across.bytes_handed
        for _ in range(5):
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.ones(1, 500, device=DEVICE)).sum())
            optimizer.step()
        counts.append(workers.background.across.bytes_handed - before)
        pace.detach()
    return counts


@pytest.mark.parametrize("nodes", [(1, 1), (1, 1, 1)])
def test_narrow_wires_carry_half_and_a_quarter_of_the_bytes(nodes: tuple[int, ...]) -> None:
    for full, *narrow in run_job(bytes_across, nodes=nodes):
        shares = [count / full for count in narrow]
        assert shares == pytest.approx([0.5, 0.5, 0.25], rel=0.02)


class Unhurried(Background):
    """Writes down the pauses it is asked for, and takes none."""

    pauses: ClassVar[list[float]] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def pace_exchanges(workers: Workers, rate_bytes_per_s: float) -> list[list[float]]:
    """The pauses of one exchange, for every wire, by a clock that stands still."""
    background = Unhurried(node=workers.background.node, across=workers.background.across)
    workers = dataclasses.replace(workers, background=background, clock=lambda: 0.0)
    pauses = []
    for wire in ("fp32", *NARROW):
        model = torch.nn.Linear(512, 96, bias=False, device=DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = attach(
            model,
            optimizer,
            "local-sgd",
            workers=workers,
            wire=wire,
            period=1,
            rate_bytes_per_s=rate_bytes_per_s,
            chunk_bytes=4 * 512 * 32,
        )
        Unhurried.pauses.clear()
        torch.autograd.backward(model(torch.ones(1, 512, device=DEVICE)).sum())
        optimizer.step()
        pauses.append(list(Unhurried.pauses))
        pace.detach()
    return pauses


def test_an_exchange_is_paced_by_what_travels() -> None:
    num_values, rate = 512 * 32, 1e6
    for full, bf16, fp16, int8 in run_job(pace_exchanges, rate, nodes=(1, 1)):
        # Three chunks each, and a pause after every one.
        assert full == pytest.approx([4 * num_values / rate] * 3)
        assert bf16 == fp16 == pytest.approx([2 * num_values / rate] * 3)
        assert int8 == pytest.approx([num_values * (1 + 4 / BLOCK) / rate] * 3)


def exchange_among_shuffled(
    _workers: Workers, layout: list[list[int]]
) -> list[tuple[float, float]]:
    """Nodes whose order is not their ranks': first and last value of a drift, for every wire."""
    workers = form_workers(layout)
    results = []
    for wire in ("fp32", *NARROW):
        model, optimizer = workloads.build_drift(2 * BLOCK + 1)
        with attach(model, optimizer, "local-sgd", workers=workers, wire=wire, period=2):
            for _ in range(4):
                optimizer.zero_grad()
                torch.autograd.backward(model(1.0 + workers.world.rank))
                optimizer.step()
        results.append((model.values[0].item(), model.values[-1].item()))
    return results


@pytest.mark.parametrize("layout", [[[3, 1], [0, 2]], [[2], [0, 1, 3]]])
def test_nodes_may_come_in_any_order(layout: list[list[int]]) -> None:
    for results in run_job(exchange_among_shuffled, layout, nodes=(4,)):
        for first, last in results:
            assert first == last == pytest.approx(4 * 2.5, rel=0.01)
