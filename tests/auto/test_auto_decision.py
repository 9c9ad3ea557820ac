"""What auto decides from given figures, against every candidate played one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.auto.auto import Auto
from paceline.auto.candidates import ALLOWED, Candidate, candidates
from paceline.auto.decision import decide, describe
from paceline.auto.figures import Computing, Figures
from paceline.auto.forecast import Forecast, apart
from paceline.auto.watching import ExchangeObserver, Reference, StepClock, Window
from paceline.cluster import Link
from paceline.rehearse import predict
from paceline.steps import zoo_step
from paceline.strategies import Replica, make_strategy, strategy_class

SIZE = 500_000  # values: two buckets, two megabytes
COMPUTING = Computing(
    forward_s=0.05,
    buckets_s=(0.0, 0.03),
    rest_s=0.0,
    optimizer_s=0.01,
    jitter=0.0,
    copied_bytes_per_s=1e13,
)


def figures(mbit_per_s: float, interference: float = 0.0) -> Figures:
    return Figures(
        computing=COMPUTING,
        inside=Link(latency_s=0.0, bandwidth_bytes_per_s=1e15),
        between=Link(latency_s=0.0, bandwidth_bytes_per_s=mbit_per_s * 1e6 / 8, shared=True),
        interference=interference,
    )


def make_forecast(*node_sizes: int) -> Forecast:
    half = SIZE // 2 + 30_000  # more than the first bucket's mebibyte
    model = nn.ParameterList([torch.zeros(SIZE - half), torch.zeros(half)])
    return Forecast(Replica(model, buffers="mean"), node_sizes, serial=True)


def test_forecasts_are_what_the_formulas_say() -> None:
    forecast, alone_s, slow = make_forecast(1, 1), COMPUTING.step_s, figures(20)
    # Two nodes: a ring moves each byte once. Flags travel with gradients and exchanges.
    exchange_s = 4 * SIZE / 2.5e6
    local = forecast.step_s(Candidate("local-sgd", (("period", 4),)), slow)
    assert local == pytest.approx(alone_s + exchange_s / 4, rel=1e-3)
    # The first bucket leaves 30 ms earlier, and the second waits for the link.
    first_s = exchange_s * (SIZE // 2 + 30_000) / SIZE
    assert first_s > COMPUTING.buckets_s[1]
    sync = forecast.step_s(Candidate("sync"), slow)
    assert sync == pytest.approx(alone_s - COMPUTING.buckets_s[1] + exchange_s, rel=1e-3)
    # Hidden behind eight steps, if they are long enough.
    options = (("period", 8), ("delay", 8), ("late", "wait"), ("warmup_steps", 0))
    daso = forecast.step_s(Candidate("daso", options), slow)
    assert daso == pytest.approx(max(alone_s, exchange_s / 8), rel=1e-2)


def test_decisions_are_those_of_brute_force() -> None:
    forecast = make_forecast(2, 2)
    every = candidates(ALLOWED, max_period=8, wires=("fp32", "bf16"), node_sizes=(2, 2))
    chosen = []
    for mbit_per_s in (10, 100, 1_000, 10_000, 1e6):
        for interference in (0.0, 0.5):
            known = figures(mbit_per_s, interference)
            times_s = {each: forecast.step_s(each, known) for each in every}
            decision = decide(every, times_s.__getitem__, alone_s=COMPUTING.step_s, least_gain=0.03)
            best_s = min(times_s.values())
            expected = next(each for each in every if times_s[each] * 0.97 <= best_s)
            assert decision.chosen == expected, known
            assert decision.expected_s == times_s[expected]
            chosen.append(expected)
    assert chosen[-1] == Candidate("sync")
    assert not chosen[0].is_exact


def test_what_trains_stays_unless_another_is_worth_it() -> None:
    sync, daso, local = Candidate("sync"), Candidate("daso"), Candidate("local-sgd")
    times_s = {sync: 0.200, local: 0.100, daso: 0.099}

    def chosen(current: Candidate | None, **changes: float) -> str:
        own = {each: changes.get(each.name[:4], seconds) for each, seconds in times_s.items()}
        return decide(
            list(own), own.__getitem__, alone_s=0.05, least_gain=0.03, current=current
        ).chosen.name

    assert chosen(None) == "local-sgd"  # as fast, and closer to plain training
    assert chosen(daso) == "daso"
    assert chosen(daso, loca=0.090) == "local-sgd"
    assert chosen(daso, sync=0.100) == "sync"
    assert chosen(sync) == "local-sgd"


def test_interference_is_what_makes_synchronous_steps_as_long_as_they_are() -> None:
    forecast, free = make_forecast(2, 2), figures(1_000)
    for share in (0.0, 0.3, 0.8):
        measured_s = forecast.step_s(Candidate("sync"), replace(free, interference=share))
        fitted = forecast.fit_interference(free, measured_s)
        assert fitted.interference == pytest.approx(share, abs=0.01)
        assert Figures.from_dict(fitted.to_dict()) == fitted


def test_a_plan_is_made_apart_from_the_callers_modes() -> None:
    with torch.no_grad(), torch.device("meta"):
        assert apart(lambda: (torch.is_grad_enabled(), torch.zeros(1).device.type)) == (True, "cpu")
    with pytest.raises(KeyError, match="mine"):
        apart(lambda: {}["mine"])  # type: ignore[index]


def test_a_prediction_is_that_of_what_would_be_picked() -> None:
    step = zoo_step("mlp", batch=16)
    options: dict[str, Any] = {"allow": "sync,local-sgd", "max_period": 4, "wires": "fp32"}
    slow = predict(step, cluster="lab-2x2", strategy="auto", **options)
    assert slow.strategy == "auto: local-sgd(period=4, wire=fp32)"
    assert slow.step_s == predict(step, cluster="lab-2x2", strategy="local-sgd", period=4).step_s
    one_node = predict(step, cluster="lab-2x2", nodes=1, strategy="auto", **options)
    assert one_node.strategy == "auto: sync"
    with pytest.raises(ValueError, match="only picks one of the other strategies"):
        from paceline.rehearse import Rehearsal

        Rehearsal(step, "auto", node_sizes=(2, 2)).record()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow": "sync,dasso"}, "auto cannot choose 'dasso': did you mean 'daso'"),
        ({"allow": ()}, "nothing to choose from"),
        ({"wires": ["fp32", "fp8"]}, "must be some of fp32, bf16, fp16, int8"),
        ({"max_period": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_strategy("auto", **options)


def test_auto_has_its_name() -> None:
    assert strategy_class("auto") is Auto
    with pytest.raises(ValueError, match="already a strategy named 'auto'"):
        from paceline.strategies import register_strategy

        register_strategy("auto")(Auto)


def test_a_pause_is_no_step() -> None:
    now_s = 0.0
    clock = StepClock(lambda: now_s)
    for took_s in (1.0, 1.0, 5.0, 1.0, 1.0, 60.0, 5.0, 1.0):
        now_s += took_s
        clock.end_step()
    assert clock.mean_s() == pytest.approx((5 * 1.0 + 2 * 5.0 + 5.0) / 8)


def test_other_steps_and_other_rates_are_noticed() -> None:
    reference = Reference()
    first = Window(step_s=0.1, rate_bytes_per_s=1e6)
    assert not reference.is_other(first)
    reference.windows.append(first)
    assert not reference.is_other(Window(step_s=0.12, rate_bytes_per_s=1.5e6))
    assert reference.is_other(Window(step_s=0.14, rate_bytes_per_s=1e6))
    assert reference.is_other(Window(step_s=0.1, rate_bytes_per_s=2e6))
    assert not reference.is_other(Window(step_s=0.1, rate_bytes_per_s=0.0))  # nothing was seen
    slow = Window(step_s=0.2, rate_bytes_per_s=1e6)
    assert reference.look(slow)
    reference.false_alarm(slow)  # one window goes by unheeded, then more
    assert [reference.look(first) for _ in range(2)] == [False, True]
    observer = ExchangeObserver(lambda: 0.0, is_on=True)
    observer.collective("across", "all_reduce", 1 << 20, 1.0, 3.0)
    observer.collective("node", "all_reduce", 1 << 20, 1.0, 2.0)
    observer.collective("world", "all_reduce", 8, 1.0, 2.0)
    assert observer.take_rate() == 2**19
    assert observer.take_rate() == 0.0


def test_a_reason_has_times_that_can_be_read() -> None:
    slow, fast = Candidate("sync"), Candidate("local-sgd", (("period", 8),))
    reason = describe(fast, {slow: 1.9712, fast: 0.09561}, 0.0395)
    assert reason == (
        "local-sgd(period=8) takes 95.6 ms per step, against sync 1.97 s; computing alone takes "
        "39.5 ms"
    )
