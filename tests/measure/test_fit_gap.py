"""The rest between two kernels, fitted to real steps that keep the GPU busy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from paceline.kernels import FittedModel, KernelModel, Profile
from paceline.kernels.fitted import load_model
from paceline.measure.kernel_fit import fit_profile
from paceline.rehearse.step_prices import device_calls_s
from paceline.steps import Capture, capture_step, zoo_step
from synthetic_profile import one_thread, plain_kernel_model, profile

GAP_S = 3e-6
NAMES = ("mlp", "small-cnn", "small-gpt")


@functools.cache
def capture_of(name: str) -> Capture:
    return capture_step(zoo_step(name, batch=64))


def kernels_s(name: str) -> float:
    """By the networks of a profile without steps."""
    return sum(each.seconds for each in plain_kernel_model().estimate(capture_of(name).kernels()))


def device_step(name: str, *, gap_s: float = GAP_S, busy: float = 0.95) -> dict[str, Any]:
    num_calls = sum(len(call.kernels) > 0 for call in capture_of(name).calls)
    step_s = kernels_s(name) + gap_s * num_calls
    return {
        "model": name,
        "batch": 64,
        "precision": "fp32",
        "step_s": step_s,
        "host_s": 1e-4,
        "busy_s": busy * step_s,
        "spread": 0.01,
    }


def fit(steps: list[dict[str, Any]], *without: str) -> FittedModel:
    facts = {**profile().facts, "device_steps": steps}
    with one_thread():
        return fit_profile(Profile(facts, profile().timings), num_steps=20, without=without)


def test_the_gap_is_what_steps_take_beyond_their_kernels() -> None:
    assert fit([device_step(name) for name in NAMES]).gap_s == pytest.approx(GAP_S)


def test_steps_that_wait_for_the_host_and_networks_left_out_do_not_count() -> None:
    steps = [
        device_step("mlp"),
        device_step("small-cnn", gap_s=5e-5, busy=0.5),
        device_step("small-gpt", gap_s=5e-5),
    ]
    assert fit(steps, "small-gpt").gap_s == pytest.approx(GAP_S)
    assert fit(steps).gap_s > 1.2 * GAP_S


def test_it_is_never_negative_and_nothing_without_steps() -> None:
    assert fit([device_step("mlp", gap_s=-1e-6)]).gap_s == 0.0
    assert fit([]).gap_s == 0.0


def test_every_call_that_runs_kernels_is_followed_by_it(tmp_path: Any) -> None:
    fitted = fit([device_step("mlp")])
    path = tmp_path / "with-gap.model.safetensors"
    fitted.save(path)
    with_gap, calls = load_model(path), capture_of("mlp").calls
    assert with_gap.gap_s == fitted.gap_s > 0
    table = profile().measured()
    plain = fit([])
    rests = device_calls_s(calls, KernelModel(with_gap.device, with_gap, table)) - device_calls_s(
        calls, KernelModel(plain.device, plain, table)
    )
    runs = np.array([len(call.kernels) > 0 for call in calls])
    assert runs.any()
    assert not runs.all()
    assert rests == pytest.approx(np.where(runs, with_gap.gap_s, 0.0), rel=1e-3, abs=1e-9)
