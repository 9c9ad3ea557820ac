"""A timer in a process of its own.

A kernel that reads where it must not leaves CUDA unusable for its whole process. Thousands of
kernels are timed in a row, some with shapes that no network uses; one of them must not end the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from paceline.measure.timer import CpuTimer, CudaTimer, Measured, Timer
from paceline.steps.kernel import Kernel

_LIMIT_S = 60.0
_START_LIMIT_S = 300.0  # importing PyTorch and starting CUDA, on a slow disk


def make_timer(device: str) -> Timer:
    """A timer for "cuda" or "cpu"."""
    if device == "cpu":
        return CpuTimer()
    if device != "cuda":
        raise ValueError(f"Kernels can be measured on cuda and cpu, not on {device!r}.")
    if not torch.cuda.is_available():
        raise ValueError("This machine has no CUDA device to measure; take --device cpu.")
    return IsolatedTimer()


class IsolatedTimer:
    """Times kernels in another process, and starts a new one when a kernel has broken it."""

    def __init__(self, make: Callable[[], Timer] = CudaTimer, *, device: str = "cuda") -> None:
        self.device = torch.device(device)
        self._make = make
        self._start()

    def time(self, kernel: Kernel) -> Measured:
        """RuntimeError if the kernel fails there, or takes longer than a minute."""
        return Measured(*self._ask("time", kernel))

    def issue_s(self, kernel: Kernel) -> float:
        """RuntimeError likewise."""
        return float(self._ask("issue_s", kernel))

    def _ask(self, what: str, kernel: Kernel) -> Any:
        try:
            self._connection.send((what, kernel.to_parts()))
            if not self._connection.poll(_LIMIT_S):
                raise EOFError
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.close()
            self._start()
            raise RuntimeError("it broke the process that ran it, or never ended") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._make), daemon=True)
        self._process.start()
        theirs.close()
        try:
            is_ready = self._connection.poll(_START_LIMIT_S) and self._connection.recv()
        except (EOFError, ConnectionResetError):
            is_ready = False
        if not is_ready:
            self.close()
            raise ValueError(
                "The process that times kernels ended before it was ready. A script that measures "
                'must do so below `if __name__ == "__main__":`, since that process imports it.'
            )


def _serve(connection: Connection, make: Callable[[], Timer]) -> None:
    # Kernels of every size come and go: whole segments would not fit into each other's gaps.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    timer = make()
    connection.send(True)
    while True:
        try:
            what, parts = connection.recv()
        except EOFError:
            return
        try:
            answer = _answer(timer, what, Kernel.from_parts(parts))
        except (RuntimeError, NotImplementedError, IndexError, TypeError) as problem:
            answer = str(problem)[:300] or repr(problem)
            try:
                timer.close()
            except RuntimeError:
                return  # the kernel has broken CUDA, and with it this process
        connection.send(answer)


def _answer(timer: Timer, what: str, kernel: Kernel) -> float | tuple[float, int] | str:
    if what == "issue_s":
        return timer.issue_s(kernel)
    measured = timer.time(kernel)
    return measured.seconds, measured.workspace_bytes
