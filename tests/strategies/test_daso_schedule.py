"""When DASO exchanges, who does it, and when its numbers change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import reference_delayed
import workloads
from jobs import DEVICE, run_job
from paceline.strategies import Daso
from paceline.strategies.plateau import Plateau
from paceline.teams import Workers
from paceline.train import attach

NUM_STEPS = 27
WARMUP, COOLDOWN = 3, 2
GRID = [
    (period, delay, merge)
    for period in range(1, 9)
    for delay in range(period + 1)
    for merge in ("stale", "corrected")
]


def slope(step: int, rank: int) -> float:
    return 0.1 * (1 + rank) + 0.01 * step * (-1.0) ** rank


def drift_loss(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    loss: torch.Tensor = model(slope(step, rank))
    return loss


def drift(workers: Workers, **options: Any) -> list[float]:
    """The value of this worker after each step."""
    model, optimizer = workloads.build_drift()
    pace = attach(model, optimizer, "daso", workers=workers, late="wait", **options)
    seen = []
    for step in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        torch.autograd.backward(drift_loss(model, step, workers.world.rank))
        optimizer.step()
        seen.append(model.values.item())
    pace.detach()
    return seen


def drift_over_grid(workers: Workers) -> list[list[float]]:
    return [
        drift(
            workers,
            period=period,
            delay=delay,
            merge=merge,
            warmup_steps=WARMUP,
            cooldown_steps=COOLDOWN,
            total_steps=NUM_STEPS,
        )
        for period, delay, merge in GRID
    ]


@pytest.fixture(scope="module")
def grid_results() -> list[list[list[float]]]:
    """By node, by case, by step."""
    return run_job(drift_over_grid, nodes=(1, 1))


def cycling_starts(period: int) -> list[int]:
    last_of_cycling = NUM_STEPS - COOLDOWN
    return list(range(WARMUP + period, last_of_cycling + 1, period))


@pytest.mark.parametrize(
    ("period", "delay", "merge"), GRID, ids=[f"B{b}-W{w}-{m}" for b, w, m in GRID]
)
def test_every_period_and_delay(
    grid_results: list[list[list[float]]], period: int, delay: int, merge: str
) -> None:
    rule = reference_delayed.Daso(
        reference.Game((1, 1), workloads.build_drift),
        period=period,
        delay=delay,
        merge=merge,
        warmup_steps=WARMUP,
        cooldown_steps=COOLDOWN,
        total_steps=NUM_STEPS,
    )
    expected = reference.play(rule, drift_loss, NUM_STEPS, observe=workloads.flat_state, reports={})
    # The reference itself, against the definition: blocking at both ends, B and W in between.
    starts = cycling_starts(period)
    blocking = [*range(1, WARMUP + 1), *range(NUM_STEPS - COOLDOWN + 1, NUM_STEPS + 1)]
    first_of_cooldown = NUM_STEPS - COOLDOWN + 1
    assert sorted([*starts, *blocking]) == rule.starts
    assert rule.merges == sorted(
        [(step, step) for step in blocking]
        + [(start, min(start + delay, first_of_cooldown)) for start in starts]
    )
    case = GRID.index((period, delay, merge))
    for rank, by_case in enumerate(grid_results):
        for step, value in enumerate(by_case[case]):
            assert value == pytest.approx(expected[step][rank].item(), rel=1e-6, abs=1e-6), step + 1
    # Known length: equal at the end without finish().
    assert len({by_case[case][-1] for by_case in grid_results}) == 1


def who_carried(workers: Workers, delay: int, num_fragments: int) -> list[int]:
    """After each exchange: how often this worker has talked to other nodes."""
    model = torch.nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"warmup_steps": 2, "period": 3, "delay": delay, "late": "wait"}
    strategy = "daso"
    if num_fragments > 1:
        strategy = "streaming-diloco"
        options = {"period": 3 * num_fragments, "fragments": num_fragments, "delay": delay}
    pace = attach(model, optimizer, strategy, workers=workers, **options)
    counts, before = [], workers.background.across.bytes_handed
    for _ in range(26):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(1, 8, device=DEVICE)).sum())
        optimizer.step()
        # Nothing is under way that was not asked for: what was handed over by now counts.
        pace.state_dict()
        now = workers.background.across.bytes_handed
        counts.append(int(now > before))
        before = now
    pace.detach()
    return counts


@pytest.mark.parametrize(
    ("nodes", "delay", "num_fragments", "num_turns"),
    [((2, 2), 0, 1, 2), ((3, 3), 2, 1, 3), ((1, 2), 1, 1, 1), ((3, 2), 3, 1, 2), ((2, 2), 1, 2, 2)],
)
def test_local_indices_carry_exchanges_in_turn(
    nodes: tuple[int, ...], delay: int, num_fragments: int, num_turns: int
) -> None:
    by_worker = run_job(who_carried, delay, num_fragments, nodes=nodes)
    local_indices = [index for size in nodes for index in range(size)]
    starts = [1, 2, *range(5, 27, 3)] if num_fragments == 1 else list(range(3, 27, 3))
    for counts, local_index in zip(by_worker, local_indices, strict=True):
        turns = [start for i, start in enumerate(starts) if i % num_turns == local_index]
        assert [step for step, count in enumerate(counts, start=1) if count] == turns


def phases(num_steps: int, **options: Any) -> str:
    """The phase of every step, as one letter each."""
    daso = Daso(**options)
    letters = ""
    for step in range(1, num_steps + 1):
        daso.step = step
        letters += {"warm-up": "w", "cycling": ".", "cool-down": "c"}[daso.phase]
    counts = {phase.name: phase.num_steps for phase in daso.schedule().phases}
    if None not in counts.values():  # the same in numbers
        asked = "".join(
            letter * (counts[name] or 0)
            for letter, name in (("w", "warm-up"), (".", "cycling"), ("c", "cool-down"))
        )
        assert asked == letters[: len(asked)]
        assert len(asked) == min(daso._total or 0, num_steps)
    return letters


def test_phases_begin_and_end_where_asked() -> None:
    assert phases(12) == "wwww........"
    assert phases(12, total_steps=12) == "wwww....cccc"
    assert phases(8, warmup_steps=0) == "........"
    assert phases(8, warmup_steps=2, cooldown_steps=3, total_steps=8) == "ww...ccc"
    # The last step blocks in any case, and what comes after a run's end does too.
    assert phases(8, warmup_steps=0, cooldown_steps=0, total_steps=6) == ".....ccc"
    # A run that is shorter than its ends.
    assert phases(5, warmup_steps=3, cooldown_steps=4, total_steps=5) == "wwwcc"
    assert phases(3, total_steps=1) == "www"


def test_phases_count_epochs_where_given() -> None:
    assert phases(12, warmup_epochs=1, steps_per_epoch=3) == "www........."
    assert (
        phases(12, warmup_epochs=0.5, cooldown_epochs=1, total_epochs=3, steps_per_epoch=4)
        == "ww......cccc"
    )
    assert phases(8, warmup_epochs=0, total_epochs=2, cooldown_steps=1, steps_per_epoch=4) == (
        ".......c"
    )


def reported(
    workers: Workers, options: dict[str, Any], reports: list[float]
) -> list[tuple[int, int]]:
    """B and W after every report; the workers' own values differ, their average is reported."""
    model, optimizer = workloads.build_drift()
    pace = attach(model, optimizer, "daso", workers=workers, **options)
    numbers = []
    for value in reports:
        pace.report(value + (0.25 if workers.world.rank else -0.25))
        status = pace.strategy.status()
        numbers.append((int(status["period"]), int(status["delay"])))
    pace.detach()
    return numbers


# Written by hand: (report, B, W after it).
PLATEAUS: list[tuple[dict[str, Any], list[tuple[float, int, int]]]] = [
    # The defaults: 5 %, patience 2, B = 4, W = 1, at most 8.
    (
        {},
        [
            (1.0, 4, 1),
            (0.96, 4, 1),  # 4 % better than the best: the first without improvement
            (0.9505, 4, 1),  # the second; small steps do not add up unnoticed
            (0.94, 4, 1),  # 6 % better than 1.0
            (0.94, 4, 1),
            (0.90, 4, 1),
            (0.95, 2, 1),  # the third in a row
            (0.94, 2, 1),
            (0.94, 2, 1),
            (0.94, 1, 1),
            (0.94, 1, 1),
            (0.94, 1, 1),
            (0.94, 8, 2),  # a plateau at B = 1: back to the maximum, with W = B/4
            (0.94, 8, 2),
            (0.50, 8, 2),
            (0.50, 8, 2),
            (0.50, 8, 2),
            (0.50, 4, 1),
        ],
    ),
    # W shrinks with B, never below one.
    (
        {"period": 16, "delay": 16, "max_period": 16, "patience": 0},
        [
            *[(1.0, 16, 16), (1.0, 8, 8), (1.0, 4, 4), (1.0, 2, 2), (1.0, 1, 1)],
            *[(1.0, 16, 4), (1.0, 8, 2), (1.0, 4, 1), (1.0, 2, 1)],
        ],
    ),
    # An odd B, and a W that is never longer.
    (
        {"period": 7, "delay": 6, "max_period": 3, "patience": 0},
        [(1.0, 7, 6), (1.0, 3, 3), (1.0, 1, 1), (1.0, 3, 1), (1.0, 1, 1)],
    ),
    # Who asked for blocking exchanges keeps them.
    (
        {"period": 2, "delay": 0, "patience": 0},
        [(1.0, 2, 0), (1.0, 1, 0), (1.0, 8, 0), (1.0, 4, 0)],
    ),
    # A metric below zero, such as a log-likelihood.
    (
        {"patience": 0, "threshold": 0.5},
        [(-1.0, 4, 1), (-1.4, 2, 1), (-1.6, 2, 1), (-2.0, 1, 1), (-3.0, 1, 1)],
    ),
    # NaN is no improvement, and never the best.
    (
        {"patience": 1},
        [
            *[(math.nan, 4, 1), (1.0, 4, 1), (0.5, 4, 1), (math.nan, 4, 1), (0.5, 2, 1)],
            *[(0.4, 2, 1), (0.3, 2, 1)],
        ],
    ),
    ({"threshold": 0.0, "patience": 0}, [(1.0, 4, 1), (0.999, 4, 1), (0.999, 2, 1)]),
]


def report_all(workers: Workers) -> list[list[tuple[int, int]]]:
    return [
        reported(workers, options, [report for report, _, _ in table])
        for options, table in PLATEAUS
    ]


def test_plateaus_change_period_and_delay_as_in_the_table() -> None:
    expected = [[(b, w) for _, b, w in table] for _, table in PLATEAUS]
    for by_case in run_job(report_all, nodes=(1, 1)):
        assert by_case == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from([1.0, 0.97, 0.9, 0.8, 1.2]), max_size=30), st.integers(0, 4))
def test_a_plateau_is_more_than_patience_reports_without_improvement(
    reports: list[float], patience: int
) -> None:
    plateau = Plateau(threshold=0.05, patience=patience)
    plateaus = [plateau.report(value) for value in reports]
    # By looking back from each report: runs without improvement, cut where a plateau was found.
    best, since = float("inf"), 0
    for index, value in enumerate(reports):
        if index == 0 or (best - value) / best > 0.05:
            best, since = value, 0
        else:
            since += 1
        assert plateaus[index] == (since == patience + 1)
        since %= patience + 1


def test_a_run_whose_length_is_told_is_one_whose_length_was_given() -> None:
    told, given = Daso(), Daso(total_steps=20)
    assert told.schedule().wants_length
    assert not given.schedule().wants_length
    told.set_run_length(20)
    assert told.schedule() == given.schedule()
    given.set_run_length(99)
    assert told.schedule() == given.schedule()
