"""The kernels by which a machine is compared with its device's profile."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.family import family_of
from paceline.kernels.library import built_in_table, profiled_devices
from paceline.measure.reference import reference_kernels
from paceline.measure.timer import CpuTimer


@pytest.mark.parametrize("device", profiled_devices())
def test_they_are_measured_kernels_of_many_families(device: str) -> None:
    found = reference_kernels(device)
    assert found == reference_kernels(device)
    table = built_in_table(device)
    for kernel, seconds in found.items():
        assert table[kernel].seconds == seconds
        assert table[kernel].sources
    families = {family_of(kernel) for kernel in found}
    assert {"convolution", "convolution_backward_weight", "matmul", "batch_norm"} <= families
    assert len(found) > len(families)


def test_a_device_without_a_profile_has_none() -> None:
    assert reference_kernels("v100") == {}


def test_those_of_a_cpu_run_here() -> None:
    timer = CpuTimer(target_s=1e-4)
    assert all(timer.time(kernel).seconds > 0 for kernel in reference_kernels("cpu-core"))


def test_the_clock_of_a_timer_can_be_chosen() -> None:
    ticks = iter(range(10**6))
    timer = CpuTimer(clock=lambda: float(next(ticks)))
    kernel = next(iter(reference_kernels("cpu-core")))
    assert timer.time(kernel).seconds == 1.0  # nothing looks at the clock in between
    assert timer.device == torch.device("cpu")
