"""The host's costs: the formula, and factors recovered from steps made with known ones."""

from __future__ import annotations

import random

import pytest

from paceline.kernels.host import HostCosts, fit_host
from paceline.steps import Call, Capture, Kernel, StepMemory
from paceline.steps.kernel import Operand
from paceline.steps.recorder import Phase

DISPATCH = {"mm": 4e-6, "view": 1e-6, "_foreach_add_.List": 9e-6}
FACTORS = {
    "forward": 1.7,
    "backward": 2.3,
    "optimizer": 1.2,
    "modules": 6e-6,
    "nodes": 3e-6,
    "steps": 9e-5,
}
BARE = HostCosts(dispatch_s=DISPATCH, tensor_s=5e-8)
KNOWN = HostCosts(dispatch_s=DISPATCH, tensor_s=5e-8, factors=FACTORS)


def call(op: str, phase: Phase, num_tensors: int = 2) -> Call:
    return Call(op, phase, (), 0, num_tensors)


def capture(*calls: Call, num_modules: int = 0, num_autograd_functions: int = 0) -> Capture:
    memory = StepMemory(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0, batch_bytes=0)
    return Capture(
        name="made up",
        batch=1,
        precision="fp32",
        calls=calls,
        gradients=(),
        memory=memory,
        num_parameters=0,
        num_modules=num_modules,
        num_autograd_functions=num_autograd_functions,
    )


def made_up(rng: random.Random) -> tuple[Capture, float]:
    """A capture, and its time on a host with the known factors, added up here."""
    counts = {name: rng.randint(1, 400) for name in ("mm", "view", "back", "lists", "mod", "node")}
    calls = [
        *(call("mm", "forward") for _ in range(counts["mm"])),
        *(call("view", "forward") for _ in range(counts["view"])),
        *(call("mm", "backward") for _ in range(counts["back"])),
        *(call("_foreach_add_.List", "optimizer", 108) for _ in range(counts["lists"])),
    ]
    seconds = (
        1.7 * (counts["mm"] * 4e-6 + counts["view"] * 1e-6)
        + 2.3 * counts["back"] * 4e-6
        + 1.2 * counts["lists"] * (9e-6 + 100 * 5e-8)  # eight tensors are in the bare dispatch
        + 6e-6 * counts["mod"]
        + 3e-6 * counts["node"]
        + 9e-5
    )
    return capture(
        *calls, num_modules=counts["mod"], num_autograd_functions=counts["node"]
    ), seconds


def test_a_steps_calls_add_up_to_the_formula() -> None:
    rng = random.Random(0)
    for _ in range(5):
        step, seconds = made_up(rng)
        assert KNOWN.calls_s(step).sum() == pytest.approx(seconds)
        assert KNOWN.calls_s(step).shape == (len(step.calls),)
        assert KNOWN.calls_s(step).min() > 0


def test_known_factors_are_recovered() -> None:
    rng = random.Random(1)
    steps = [made_up(rng) for _ in range(40)]
    times = [seconds for _, seconds in steps]
    found = fit_host(BARE, [each for each, _ in steps], times, scale_s=times)
    for name in ("forward", "backward", "optimizer", "modules", "nodes"):
        assert found.factors[name] == pytest.approx(FACTORS[name], rel=0.1)
    assert found.spread < 0.02
    assert (found.dispatch_s, found.tensor_s) == (DISPATCH, 5e-8)
    step, seconds = made_up(random.Random(2))
    assert found.calls_s(step).sum() == pytest.approx(seconds, rel=0.02)


def test_the_spread_is_that_of_the_steps() -> None:
    rng = random.Random(3)
    steps = [made_up(rng) for _ in range(60)]
    times = [seconds * rng.choice((0.9, 1.1)) for _, seconds in steps]
    found = fit_host(BARE, [each for each, _ in steps], times, scale_s=times)
    assert found.spread == pytest.approx(0.1, rel=0.3)


def test_factors_are_never_negative() -> None:
    rng = random.Random(4)
    steps = [made_up(rng)[0] for _ in range(20)]
    times = [1e-3 - 1e-6 * step.num_autograd_functions for step in steps]
    found = fit_host(BARE, steps, times, scale_s=times)
    assert min(found.factors.values()) >= 0.0


def test_an_operator_that_was_not_measured_costs_the_median() -> None:
    assert BARE.bare_s(call("nosuchop", "forward")) == 4e-6
    assert HostCosts().bare_s(call("nosuchop", "forward")) == 0.0


def gradient_of_rows(num_indices: int) -> Call:
    kernel = Kernel(
        "embedding_dense_backward",
        (Operand("f32", (num_indices, 8)), Operand("i64", (num_indices,)), 1000, -1, False),
    )
    return Call(kernel.op, "backward", (kernel,), 0, 2)


def test_a_gradient_that_sorts_its_indices_costs_more() -> None:
    name = "embedding_dense_backward"
    costs = HostCosts(dispatch_s={name: 15e-6, f"{name}.sorted": 150e-6})
    assert costs.bare_s(gradient_of_rows(3072)) == 15e-6
    assert costs.bare_s(gradient_of_rows(3073)) == 150e-6
    # A CPU sorts nothing.
    assert HostCosts(dispatch_s={name: 15e-6}).bare_s(gradient_of_rows(3073)) == 15e-6


def test_only_lists_cost_by_their_length() -> None:
    assert BARE.bare_s(call("mm", "forward", 108)) == 4e-6
    assert BARE.bare_s(call("_foreach_add_.List", "optimizer", 8)) == 9e-6
    assert BARE.bare_s(call("_foreach_add_.List", "optimizer", 108)) == pytest.approx(14e-6)


def test_without_factors_the_host_is_unknown_and_free() -> None:
    step, _ = made_up(random.Random(5))
    assert not BARE.is_known
    assert BARE.calls_s(step).tolist() == [0.0] * len(step.calls)


def test_costs_survive_plain_values() -> None:
    assert HostCosts.from_dict(KNOWN.to_dict()) == KNOWN
