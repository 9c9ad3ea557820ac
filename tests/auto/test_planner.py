"""How predictions are corrected by what was measured, against sums done by hand."""

from __future__ import annotations

import json

import pytest

from paceline.auto.candidates import Candidate, candidates
from paceline.auto.figures import Computing, Figures
from paceline.auto.planner import Planner
from paceline.cluster import Link

ALONE_S = 0.1
COMPUTING = Computing(
    forward_s=0.06,
    buckets_s=(0.0,),
    rest_s=0.0,
    optimizer_s=0.04,
    jitter=0.0,
    copied_bytes_per_s=1e13,
)
FIGURES = Figures(
    computing=COMPUTING, inside=None, between=Link(latency_s=0.0, bandwidth_bytes_per_s=1e7)
)


class Told:
    """Predicts what it is told: that exchanges of DASO cost nothing, and others do."""

    def step_s(self, candidate: Candidate, figures: Figures) -> float:
        if candidate.name == "daso":
            return ALONE_S
        return ALONE_S + 0.2 * candidate.load / 4


def daso(period: int, delay: int, wire: str = "fp32") -> Candidate:
    own = (("delay", delay), ("late", "wait"), ("warmup_steps", 0))
    return Candidate("daso", (("period", period), ("wire", wire), *own))


def local(period: int, wire: str) -> Candidate:
    return Candidate("local-sgd", (("period", period), ("wire", wire)))


def make_planner() -> Planner:
    allowed = candidates(
        ("sync", "local-sgd", "daso"), max_period=8, wires=("fp32", "bf16"), node_sizes=(1, 1)
    )
    planner = Planner(allowed, least_gain=0.03)
    planner.figures = FIGURES
    return planner


def expected_s(planner: Planner, candidate: Candidate) -> float:
    return planner._expected_s(candidate, Told())  # type: ignore[arg-type]


def test_load_is_bytes_per_step_and_element() -> None:
    assert Candidate("sync").load == 4
    assert local(8, "bf16").load == 0.25
    assert daso(4, 2).load == 1


def test_what_exchanges_took_too_long_shrinks_with_what_is_exchanged() -> None:
    planner = make_planner()
    planner.correct(daso(4, 2), [0.14, 0.14, 0.2], Told())  # type: ignore[arg-type]
    assert expected_s(planner, daso(4, 2)) == pytest.approx(0.14)
    # 40 ms for one byte per step and element: half as often, and half as wide.
    assert expected_s(planner, daso(8, 4)) == pytest.approx(0.12)
    assert expected_s(planner, daso(8, 4, "bf16")) == pytest.approx(0.11)
    # Another strategy was not measured.
    assert expected_s(planner, local(8, "bf16")) == pytest.approx(0.1125)
    # Local SGD at its best (10 % less than predicted) would be faster: it is tried.
    chosen = planner.decide(Told(), current=daso(4, 2)).chosen  # type: ignore[arg-type]
    assert chosen.name == "local-sgd"
    # Once it is known to be no better, DASO goes on with what it exchanges less.
    planner.correct(local(8, "bf16"), [0.125], Told())  # type: ignore[arg-type]
    chosen = planner.decide(Told(), current=local(8, "bf16")).chosen  # type: ignore[arg-type]
    assert chosen.name == "daso" and chosen.load == 0.25


def test_what_was_faster_is_assumed_so_by_its_share() -> None:
    planner = make_planner()
    planner.correct(local(8, "bf16"), [0.9 * 0.1125], Told())  # type: ignore[arg-type]
    assert expected_s(planner, local(4, "fp32")) == pytest.approx(0.9 * 0.15)


def test_a_measured_candidate_counts_for_itself() -> None:
    planner = make_planner()
    planner.correct(daso(4, 2), [0.14], Told())  # type: ignore[arg-type]
    planner.correct(daso(8, 4), [0.105], Told())  # type: ignore[arg-type]
    assert expected_s(planner, daso(8, 4)) == pytest.approx(0.105)
    # From one: 0.1 + 0.01; from the other: 0.1 + 0.0025; the median of both.
    assert expected_s(planner, daso(8, 8, "bf16")) == pytest.approx(0.10625)


def test_what_was_measured_survives_a_checkpoint() -> None:
    planner, other = make_planner(), make_planner()
    planner.correct(daso(4, 2), [0.14], Told())  # type: ignore[arg-type]
    other.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    assert other.measured == planner.measured
    assert expected_s(other, daso(8, 4)) == expected_s(planner, daso(8, 4))
