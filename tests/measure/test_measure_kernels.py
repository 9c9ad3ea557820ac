"""A small measurement, for real, on this machine's CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.kernels.profile import Profile, Timing, load_profile
from paceline.measure.host import measure_dispatch
from paceline.measure.isolated import make_timer
from paceline.measure.kernels import machine_facts, measure_kernels
from paceline.measure.real_step import measure_step
from paceline.measure.timer import CpuTimer
from paceline.steps import Kernel, Operand, Step, capture_step, zoo_step


def quiet(what: str, done: int, total: int) -> None:
    pass


def plan(path: Path, *more: Kernel, **facts: object) -> list[Kernel]:
    """The kernels of a small network, planned; with the real steps, which take long, left out."""
    kernels = [*dict.fromkeys(capture_step(zoo_step("small-cnn", batch=2)).kernels()), *more]
    timings = {kernel: Timing(None, 0, ("small-cnn",)) for kernel in kernels}
    Profile({"steps": [], **facts}, timings).save(path)
    return kernels


def test_a_measurement_that_its_budget_ends_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "here.kernels.gz"
    kernels = plan(path)
    first = measure_kernels(path, device="cpu", budget_s=0.03, report=quiet)
    assert 0 < len(first.measured()) < len(kernels)
    assert load_profile(path).timings.keys() == set(kernels)
    before = load_profile(path).measured()
    assert before.keys() == first.measured().keys()

    reports: list[tuple[str, int, int]] = []
    measure_kernels(path, device="cpu", budget_s=60.0, report=lambda *each: reports.append(each))
    whole = load_profile(path)
    assert whole.planned() == []
    assert list(whole.timings) == kernels
    assert all(timing.seconds for timing in whole.timings.values())
    assert {kernel: whole.timings[kernel] for kernel in before} == before
    assert {timing.sources for timing in whole.timings.values()} == {("small-cnn",)}
    assert reports[-1] == ("timing kernels", len(kernels) - len(before), len(kernels) - len(before))
    facts = machine_facts("cpu")
    assert {key: whole.facts[key] for key in facts} == facts
    assert whole.facts["failed"] == {}


def test_the_kernels_of_a_given_step_come_first_and_keep_their_times(tmp_path: Path) -> None:
    path = tmp_path / "here.kernels.gz"
    others = plan(path)
    step = zoo_step("mlp", batch=4)
    wanted = list(dict.fromkeys(capture_step(step).kernels()))
    assert not set(wanted) <= set(others)
    part = measure_kernels(path, device="cpu", budget_s=0.005, report=quiet, steps=[step])
    order = [timing.seconds is not None for timing in part.timings.values()]
    assert order == sorted(order, reverse=True)
    assert list(part.timings)[: len(wanted)] == wanted
    assert set(part.timings) == {*wanted, *others}
    assert all("mlp" in part.timings[kernel].sources for kernel in wanted)

    whole = measure_kernels(path, device="cpu", budget_s=60.0, report=quiet, steps=[step])
    assert whole.planned() == []
    before = {kernel: each.seconds for kernel, each in part.measured().items()}
    after = {kernel: whole.timings[kernel].seconds for kernel in before}
    assert after == pytest.approx(before, rel=1e-4)
    again = measure_kernels(path, device="cpu", budget_s=60.0, report=quiet, steps=[step, step])
    assert again.timings == load_profile(path).timings


def test_a_step_that_cannot_be_captured_ends_the_plan_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "here.kernels.gz"
    step = Step(model=nn.Linear(3, 3), inputs=torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"^Linear fails on an input of shape \(2, 4\)"):
        measure_kernels(path, device="cpu", budget_s=1.0, report=quiet, steps=[step])
    assert not path.exists()


def test_kernels_that_fail_are_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "here.kernels.gz"
    row, rows = Operand("f32", (3,)), Operand("f32", (4, 5))
    impossible = (Kernel("mm", (rows, rows)), Kernel("nosuchoperator", (row,)))
    kernels = plan(path, *impossible)
    profile = measure_kernels(path, device="cpu", budget_s=60.0, report=quiet)
    assert set(profile.facts["failed"]) == {"mm", "nosuchoperator"}
    assert "shapes" in profile.facts["failed"]["mm"]
    assert set(load_profile(path).timings) == set(kernels) - set(impossible)


def test_a_profile_of_another_machine_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "there.kernels.gz"
    plan(path, device_name="Another CPU")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"is of a Another CPU, this machine has a .*--out\.$"):
        measure_kernels(path, device="cpu", budget_s=1.0, report=quiet)
    assert path.read_bytes() == before


def test_devices_that_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match=r"^Kernels can be measured on cuda and cpu, not on 'tpu'"):
        make_timer("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"no CUDA device to measure; take --device cpu"):
            make_timer("cuda")


def test_bare_dispatch_is_measured_for_every_operator_and_view() -> None:
    kernels = set(capture_step(zoo_step("small-gpt", batch=2)).kernels())
    host, failed = measure_dispatch(kernels, CpuTimer())
    assert failed == {}
    calls = {call.op for call in capture_step(zoo_step("small-gpt", batch=2)).calls}
    missing = calls - set(host["dispatch_s"])
    assert missing <= {"_local_scalar_dense", "lift_fresh"}
    assert all(seconds > 0 for seconds in host["dispatch_s"].values())
    assert host["tensor_s"] >= 0


def test_a_real_step_is_measured_and_trains() -> None:
    step = zoo_step("mlp", batch=4, device="cpu")
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    measured = measure_step(step, rounds=2, target_s=0.01)
    assert measured.step_s > 0
    assert measured.host_s > 0
    assert measured.spread >= 0
    assert measured.peak_bytes == 0
    after = list(step.model.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
