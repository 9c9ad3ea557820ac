"""A timer in a process of its own, which some kernels end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from paceline.measure.host import measure_dispatch
from paceline.measure.isolated import IsolatedTimer
from paceline.measure.timer import CpuTimer, Measured
from paceline.steps import Kernel, capture_step, zoo_step


class FragileTimer(CpuTimer):
    """A CPU's timer whose process some operators break, each in another way."""

    def time(self, kernel: Kernel) -> Measured:
        return Measured(self._run(kernel), os.getpid())

    def issue_s(self, kernel: Kernel) -> float:
        return self._run(kernel)

    def close(self) -> None:
        if self._is_broken:
            raise RuntimeError("an illegal memory access was encountered")

    _is_broken = False

    def _run(self, kernel: Kernel) -> float:
        if kernel.op == "mm":
            os._exit(1)
        if kernel.op == "addmm":
            self._is_broken = True  # as CUDA is from then on
        if kernel.op in ("addmm", "relu_"):
            raise RuntimeError("no such kernel")
        return 1e-6


class BrokenTimer(CpuTimer):
    """One that no process can make."""

    def __init__(self) -> None:
        raise RuntimeError("no kernel image is available")


@pytest.fixture
def timer() -> Iterator[IsolatedTimer]:
    made = IsolatedTimer(FragileTimer, device="cpu")
    yield made
    made.close()


@cache
def kernels() -> dict[str, Kernel]:
    """One of each operator; not made when the timer's process imports this file."""
    return {kernel.op: kernel for kernel in capture_step(zoo_step("mlp", batch=2)).kernels()}


def process(timer: IsolatedTimer) -> int:
    """Which process times."""
    return timer.time(kernels()["sum.dim_IntList"]).workspace_bytes


def test_a_kernel_that_fails_leaves_the_process(timer: IsolatedTimer) -> None:
    before = process(timer)
    assert before != os.getpid()
    with pytest.raises(RuntimeError, match=r"^no such kernel$"):
        timer.time(kernels()["relu_"])
    assert process(timer) == before


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_a_kernel_that_breaks_the_process_gets_the_next_one_a_new_one(
    op: str, timer: IsolatedTimer
) -> None:
    before = process(timer)
    with pytest.raises(RuntimeError, match="broke the process"):
        timer.time(kernels()[op])
    assert process(timer) not in (before, os.getpid())


def test_an_operator_that_breaks_when_issued_is_named_and_left_out(timer: IsolatedTimer) -> None:
    host, failed = measure_dispatch(kernels().values(), timer)
    assert set(failed) == {"mm", "addmm", "relu_"}
    assert "broke the process" in failed["mm"]
    assert not {"mm", "addmm", "relu_"} & set(host["dispatch_s"])
    assert host["dispatch_s"]["sum.dim_IntList"] == 1e-6


def test_a_process_that_cannot_start_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="ended before it was ready"):
        IsolatedTimer(BrokenTimer, device="cpu")
