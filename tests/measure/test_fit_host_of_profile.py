"""The host's part of a fit: real steps of the zoo, with times made from known costs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from paceline.cluster.device import Precision
from paceline.kernels import FittedModel, Profile, Timing
from paceline.kernels.host import HostCosts
from paceline.measure.kernel_fit import fit_profile
from paceline.steps import Capture, capture_step, zoo_step
from paceline.steps.recorder import Call
from synthetic_profile import activation, one_thread, plain_kernel_model, profile

CASES: list[tuple[str, Precision]] = [
    (name, precision)
    for name in ("mlp", "small-cnn", "small-gpt", "alexnet", "resnet18")
    for precision in ("fp32", "bf16")
]


@functools.cache
def capture_of(case: tuple[str, Precision]) -> Capture:
    name, precision = case
    return capture_step(zoo_step(name, batch=2, precision=precision))


@functools.cache
def true_costs() -> HostCosts:
    ops = sorted({call.op for case in CASES for call in capture_of(case).calls})
    return HostCosts(
        dispatch_s={op: 1e-6 * (1 + index % 7) for index, op in enumerate(ops)},
        tensor_s=1e-7,
        factors={
            "forward": 2.0,
            "backward": 1.4,
            "optimizer": 1.8,
            "modules": 8e-6,
            "nodes": 2e-6,
            "steps": 4e-5,
        },
    )


def host_s(case: tuple[str, Precision]) -> float:
    return float(true_costs().calls_s(capture_of(case)).sum())


def fit(device_type: str, *, wrong: str = "", without: tuple[str, ...] = ()) -> FittedModel:
    """Fit a profile whose steps have the true times, but for those of one network.

    It also has an operator that no step uses, measured in one large kernel alone.
    """
    kernels = plain_kernel_model()
    steps: list[dict[str, Any]] = []
    for case in CASES:
        host = host_s(case) * (20 if case[0] == wrong else 1)
        device = sum(each.seconds for each in kernels.estimate(capture_of(case).kernels()))
        steps.append(
            {
                "model": case[0],
                "batch": 2,
                "precision": case[1],
                # A CPU's step is one after the other; there host_s says nothing. A GPU's is as
                # long as the slower of the two, and if that is the host, host_s is not needed.
                "step_s": host + device if device_type == "cpu" else max(host, device),
                "host_s": host if device_type == "cuda" and device > 0.9 * host else 0.5,
                "spread": 0.1,
            }
        )
    large = activation("tanh", 1 << 24)
    timings = {**profile().timings, large: Timing(0.08, 4, ("net",))}
    dispatch_s = {**true_costs().dispatch_s, "tanh": 0.08}
    host_facts = {"dispatch_s": dispatch_s, "tensor_s": true_costs().tensor_s}
    facts = {**profile().facts, "device_type": device_type, "host": host_facts, "steps": steps}
    with one_thread():
        return fit_profile(Profile(facts, timings), num_steps=20, without=without)


def check(host: HostCosts, tolerance: float) -> None:
    assert host.is_known
    for case in CASES:
        assert host.calls_s(capture_of(case)).sum() == pytest.approx(host_s(case), rel=tolerance)


def test_a_gpus_host_is_fitted_to_the_hosts_times() -> None:
    host = fit("cuda").host
    check(host, 0.03)
    assert host.spread < 0.03
    # A GPU's call returns at once, however large the kernel.
    assert host.dispatch_s["tanh"] == 0.08


def test_a_cpus_host_is_what_its_steps_leave_beside_the_kernels() -> None:
    host = fit("cpu").host
    check(host, 0.1)
    # A CPU's call computes: what the large kernel takes is no dispatch.
    assert "tanh" not in host.dispatch_s
    assert host.bare_s(Call("tanh", "forward", (), live_bytes=0, num_tensors=1)) == pytest.approx(
        4e-6, abs=2e-6
    )


def test_steps_of_a_network_that_is_left_out_are_not_used() -> None:
    without = fit("cuda", wrong="mlp", without=("mlp",)).host
    check(without, 0.1)
    confused = fit("cuda", wrong="mlp").host
    assert confused.spread > 10 * without.spread
