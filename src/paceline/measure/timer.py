"""Times kernels on this machine's device, each on its own."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from paceline.kernels.recurrent import kept_bytes
from paceline.measure.runner import Run, prepare
from paceline.steps.kernel import Kernel

_CACHE_BYTES = 128 << 20  # more than any level of cache that we know of (H200: 50 MB)
_MAX_COPIES = 4
NUM_ISSUED = 60  # calls in a row
_MOST_ISSUED_S = 0.1  # for which they may go on


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel's time, and the memory it needs in addition to its operands."""

    seconds: float
    workspace_bytes: int


class Timer(Protocol):
    """What times a kernel."""

    device: torch.device

    def time(self, kernel: Kernel) -> Measured:
        """Run the kernel several times and take the median."""

    def issue_s(self, kernel: Kernel) -> float:
        """Seconds that calling the kernel's operator takes the host."""

    def close(self) -> None:
        """Give back what the timer holds."""


class CudaTimer:
    """CUDA events around kernels that wait in the queue, so that launching them costs nothing."""

    def __init__(self, *, target_s: float = 1e-3, rounds: int = 2) -> None:
        self.device = torch.device("cuda")
        self._target_s = target_s
        self._rounds = rounds
        self._cycles_per_s = _cuda_cycles_per_s()

    def time(self, kernel: Kernel) -> Measured:
        """The median over rounds of the mean over the calls of a round."""
        torch.backends.cuda.matmul.allow_tf32 = kernel.math == "tf32"
        first, host_s, workspace_bytes = self._first_run(kernel)
        runs = [first, *(prepare(kernel, self.device) for _ in range(_num_copies(kernel) - 1))]
        quick_s = self._round(runs, len(runs), host_s)
        repeats = max(len(runs), min(8, round(self._target_s / max(quick_s, 1e-7))))
        rounds = self._rounds if quick_s < 20e-3 else 1
        times = [self._round(runs, repeats, host_s) for _ in range(rounds)]
        return Measured(statistics.median(times), workspace_bytes)

    def issue_s(self, kernel: Kernel) -> float:
        """Seconds until a call returns, while the device is still at it."""
        return issue_s(_ready(kernel, self.device), self.device)

    def close(self) -> None:
        """Give unused memory back; RuntimeError if a kernel has broken CUDA."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _first_run(self, kernel: Kernel) -> tuple[Run, float, int]:
        """What runs it, what queueing it costs the host, and its workspace."""
        run = prepare(kernel, self.device)
        run()  # chooses algorithms, loads modules
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        begun = time.perf_counter()
        result = run()
        host_s = time.perf_counter() - begun
        peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        del result
        workspace_bytes = peak - max(before, after) - _copied_bytes(kernel)
        return run, host_s, max(workspace_bytes, 0)

    def _round(self, runs: list[Run], repeats: int, host_s: float) -> float:
        """Seconds per call on the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The device sleeps until the host has queued every call.
        torch.cuda._sleep(int(self._cycles_per_s * (host_s * repeats * 1.2 + 3e-5)))  # type: ignore[no-untyped-call]
        start.record()
        for index in range(repeats):
            runs[index % len(runs)]()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeats


def _copied_bytes(kernel: Kernel) -> int:
    """What autograd copies only because the backward pass is repeated.

    cuDNN overwrites what a recurrent layer kept, so a graph that is retained hands it a copy.
    """
    return kept_bytes(kernel) if kernel.op == "recurrent_backward" else 0


class CpuTimer:
    """A clock around calls, on as many threads as PyTorch uses.

    ``clock`` may be the processor's time of this process, where others want the same cores.
    """

    def __init__(
        self, *, target_s: float = 4e-3, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.device = torch.device("cpu")
        self._target_s = target_s
        self._clock = clock

    def time(self, kernel: Kernel) -> Measured:
        """The median of single calls, on operands that are not in the cache."""
        runs = [prepare(kernel, self.device) for _ in range(_num_copies(kernel))]
        quick_s = statistics.median(self._timed(run) for run in (runs[0], *runs))
        repeats = max(3, min(30, round(self._target_s / max(quick_s, 1e-7))))
        times = [self._timed(runs[index % len(runs)]) for index in range(repeats)]
        return Measured(statistics.median(times), 0)

    def issue_s(self, kernel: Kernel) -> float:
        """Seconds of a call; on a CPU that is the kernel, too, so it should be a small one."""
        return issue_s(_ready(kernel, self.device), self.device)

    def close(self) -> None:
        """Nothing to give back."""

    def _timed(self, run: Run) -> float:
        begun = self._clock()
        run()
        return self._clock() - begun


def issue_s(run: Run, device: torch.device) -> float:
    """Seconds to issue a call; a GPU's queue never fills, since the calls are few and short."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else int
    begun = time.perf_counter()
    run()
    # A recurrent layer's call takes milliseconds: fewer of them are as sure.
    count = max(2, min(NUM_ISSUED, round(_MOST_ISSUED_S / (time.perf_counter() - begun))))
    times = []
    for _ in range(5):
        wait()
        begun = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - begun) / count)
    wait()
    return statistics.median(times)


def _ready(kernel: Kernel, device: torch.device) -> Run:
    """What runs the kernel, after its first run."""
    run = prepare(kernel, device)
    run()
    return run


def _num_copies(kernel: Kernel) -> int:
    """Sets of operands to go round, so that none is still in the cache when it comes again."""
    footprint = max(kernel.num_bytes, 1)
    if footprint < 1 << 16:
        return 1  # in training, too, so little stays in the cache
    return max(1, min(_MAX_COPIES, -(-_CACHE_BYTES // footprint)))


def _cuda_cycles_per_s() -> float:
    """How many cycles of ``torch.cuda._sleep`` make a second."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
    start.record()
    torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
    end.record()
    end.synchronize()
    return 10_000_000 / (float(start.elapsed_time(end)) / 1e3)


def num_threads() -> int:
    """Threads that CPU kernels run on."""
    return min(torch.get_num_threads(), os.cpu_count() or 1)
