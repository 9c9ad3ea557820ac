"""Which kernels to measure: those of the zoo at several batches and precisions, and neighbours."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Literal

import torch

from paceline.cluster.device import Precision
from paceline.kernels.family import bytes_of, family_of, flop_of
from paceline.measure.neighbours import draw_neighbours
from paceline.steps import Kernel, capture_step, zoo_step
from paceline.steps.step import MemoryFormat
from paceline.zoo import model_names, zoo_entry

# Filling a fresh weight is no part of training.
_INITIAL = ("uniform_", "normal_", "trunc_normal_")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How wide to sample, and what is too large to run."""

    batches: tuple[int, ...]
    precisions: tuple[Precision, ...]
    num_neighbours: int
    """Random modules in all, each of several kernels."""
    max_neighbours_in_family: int
    """Nearly every module also has pointwise kernels, which would outnumber all others."""
    max_flop: float
    max_bytes: float
    seed: int = 0


GPU_PLAN = PlanSettings(
    batches=(8, 16, 32, 64, 128, 256),
    precisions=("fp32", "tf32", "bf16", "fp16"),
    num_neighbours=16000,
    max_neighbours_in_family=8000,
    max_flop=8e12,
    max_bytes=24e9,
)
CPU_PLAN = PlanSettings(
    batches=(2, 4, 8, 16, 32),
    precisions=("fp32",),
    num_neighbours=4000,
    max_neighbours_in_family=2500,
    max_flop=1e10,
    max_bytes=400e6,
)

_Job = tuple[Literal["zoo", "neighbours"], str, int, Precision, MemoryFormat]


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    sources: dict[Kernel, tuple[str, ...]]
    """The kernels in random order, each with the networks that it came from."""
    tried: Counter[str]
    """Random modules by kind."""
    dropped: Counter[str]
    """Those of them whose sizes did not fit together."""


@dataclass(frozen=True)
class _Found:
    """What one job found: kernels of a network, or of no network."""

    kernels: list[Kernel]
    source: str = ""
    tried: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def plan_kernels(
    settings: PlanSettings,
    *,
    progress: Callable[[float], None] = lambda share: None,
    num_processes: int = 1,
) -> Plan:
    """Capture the zoo and draw neighbours."""
    sources: dict[Kernel, set[str]] = {}
    tried: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    jobs = list(_jobs(settings))
    for done, found in enumerate(_run(jobs, settings.seed, num_processes), start=1):
        for kernel in found.kernels:
            if _is_wanted(kernel, settings):
                sources.setdefault(kernel, set()).update({found.source} - {""})
        tried.update(found.tried)
        dropped.update(found.dropped)
        progress(done / len(jobs))
    kernels = sorted(sources, key=lambda kernel: (kernel.op, repr(kernel.args)))
    random.Random(settings.seed).shuffle(kernels)  # a budget that ends early has seen all kinds
    chosen = _thinned(kernels, sources, settings)
    return Plan({kernel: tuple(sorted(sources[kernel])) for kernel in chosen}, tried, dropped)


def _thinned(
    kernels: Iterable[Kernel], sources: Mapping[Kernel, set[str]], settings: PlanSettings
) -> Iterator[Kernel]:
    """Every kernel of a network, but of neighbours only so many in a family."""
    counts: Counter[str | None] = Counter()
    for kernel in kernels:
        family = family_of(kernel)
        if not sources[kernel]:
            counts[family] += 1
            if counts[family] > settings.max_neighbours_in_family:
                continue
        yield kernel


def _jobs(settings: PlanSettings) -> Iterator[_Job]:
    for name in model_names():
        for precision in settings.precisions:
            # tf32 and fp16 differ from fp32 and bf16 in few kernels: one batch shows them.
            extra = precision in ("tf32", "fp16")
            for batch in (64,) if extra else settings.batches:
                yield "zoo", name, batch, precision, "contiguous"
                if zoo_entry(name).kind == "image" and batch in settings.batches[2:5:2]:
                    yield "zoo", name, batch, precision, "channels_last"
    shares = {"fp32": 0.4, "tf32": 0.08, "bf16": 0.42, "fp16": 0.1}
    total = sum(shares[precision] for precision in settings.precisions)
    for precision in settings.precisions:
        count = round(settings.num_neighbours * shares[precision] / total)
        for chunk in range(8):
            yield "neighbours", str(chunk), count // 8, precision, "contiguous"


def _run(jobs: Sequence[_Job], seed: int, num_processes: int) -> Iterable[_Found]:
    if num_processes == 1:
        yield from (_run_job(job, seed) for job in jobs)
        return
    context = get_context("forkserver")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(_run_job, job, seed) for job in jobs]):
            yield future.result()


def _run_job(job: _Job, seed: int) -> _Found:
    kind, name, count, precision, memory_format = job
    if kind == "zoo":
        step = zoo_step(name, batch=count, precision=precision, memory_format=memory_format)
        return _Found(list(dict.fromkeys(capture_step(step).kernels())), name)
    torch.manual_seed(seed)
    drawn = draw_neighbours(random.Random(f"{seed} {name} {precision}"), precision, count)
    kernels = [kernel for kernel in dict.fromkeys(drawn.kernels) if kernel.op not in _INITIAL]
    return _Found(kernels, tried=drawn.tried, dropped=drawn.dropped)


def _is_wanted(kernel: Kernel, settings: PlanSettings) -> bool:
    return flop_of(kernel) <= settings.max_flop and bytes_of(kernel) <= settings.max_bytes
