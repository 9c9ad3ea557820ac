"""Measures the kernels of this machine's device and writes them into a profile."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.cluster.device import Precision
from paceline.kernels.library import built_in_profile, nearest_profiled
from paceline.kernels.profile import Profile, Timing, append, load_profile
from paceline.measure.host import (
    measure_busy_steps,
    measure_dispatch,
    measure_small_steps,
)
from paceline.measure.isolated import make_timer
from paceline.measure.plan import CPU_PLAN, GPU_PLAN, PlanSettings, plan_kernels
from paceline.measure.timer import Timer, num_threads
from paceline.steps import Capture, Kernel, Step, capture_step
from paceline.version import __version__

Report = Callable[[str, int, int], None]
"""What is going on, how much of it is done, how much there is."""
_FLUSH_S = 5.0
_CPU_INFO = Path("/proc/cpuinfo")


def settings_for(device: str) -> PlanSettings:
    """How a plan for "cuda" or "cpu" is drawn."""
    return CPU_PLAN if device == "cpu" else GPU_PLAN


def built_in_plan(device: str) -> Profile:
    """A profile that plans what the one that comes with paceline has measured, in random order.

    Drawing a plan means capturing hundreds of steps, which takes minutes; this takes seconds.
    """
    built_in = load_profile(built_in_profile(nearest_profiled(device)))
    kernels = list(built_in.timings)
    random.Random(0).shuffle(kernels)  # a budget that ends early has seen all kinds
    return Profile(
        {}, {kernel: Timing(None, 0, built_in.timings[kernel].sources) for kernel in kernels}
    )


def drawn_plan(settings: PlanSettings, report: Report, *, num_processes: int = 1) -> Profile:
    """A profile that plans the kernels of the zoo and neighbours of them, drawn anew."""

    def progress(share: float) -> None:
        report("capturing networks", round(share * 1000), 1000)

    plan = plan_kernels(settings, progress=progress, num_processes=num_processes)
    facts = {"neighbours": {"tried": dict(plan.tried), "dropped": dict(plan.dropped)}}
    timings = {kernel: Timing(None, 0, each) for kernel, each in plan.sources.items()}
    return Profile(facts, timings)


def make_plan(
    path: Path,
    draw: Callable[[], Profile],
    *,
    steps: Sequence[Step] = (),
) -> Profile:
    """Write a profile in which every kernel is planned, those of ``steps`` first, none measured."""
    captures = [capture_step(step) for step in steps]  # what cannot be captured is said at once
    profile = draw()
    _put_first(profile, captures)
    profile.save(path)
    return profile


def _put_first(profile: Profile, captures: Sequence[Capture]) -> None:
    """Plan the kernels of ``captures`` before all others; those that have a time keep it."""
    first: dict[Kernel, Timing] = {}
    for capture in captures:
        for kernel in dict.fromkeys(capture.kernels()):
            known = first.get(kernel) or profile.timings.get(kernel) or Timing(None)
            sources = tuple(sorted({*known.sources, capture.name}))
            first[kernel] = replace(known, sources=sources)
    rest = {kernel: each for kernel, each in profile.timings.items() if kernel not in first}
    profile.timings = first | rest


def measure_kernels(
    path: Path,
    *,
    device: str,
    budget_s: float,
    report: Report,
    steps: Sequence[Step] = (),
    draw: Callable[[], Profile] | None = None,
) -> Profile:
    """Time the kernels that a profile plans. Called again, it continues where it stopped.

    Args:
        path: The profile. If there is none, a new one is planned.
        device: ``"cuda"`` or ``"cpu"``.
        budget_s: How long to time kernels; the host's costs are measured afterwards.
        report: Called with what is being done, how much of it is done, and how much there is.
        steps: Steps whose kernels are timed first, so that a prediction finds all of them.
        draw: Makes the plan of a new profile; by default :func:`built_in_plan`.
    """
    timer = make_timer(device)
    if path.exists():
        profile = load_profile(path)
        _check_same_machine(profile, path, device)
        if steps:
            _put_first(profile, [capture_step(step) for step in steps])
            profile.save(path)
    else:
        profile = make_plan(path, draw or partial(built_in_plan, device), steps=steps)
    profile.facts |= machine_facts(device)
    append(path, profile.facts, {})
    try:
        _time_all(profile, path, timer, budget_s, report)
        if "steps" not in profile.facts:
            profile.facts |= _dispatch_facts(profile, timer, report)
    finally:
        timer.close()
    if "steps" not in profile.facts:
        profile.facts |= _step_facts(timer.device.type, report)
        append(path, profile.facts, {})
    profile.save(path)  # one line per kernel, in place of plan and appended results
    return profile


def _dispatch_facts(profile: Profile, timer: Timer, report: Report) -> dict[str, Any]:
    """What issuing operators costs the host."""
    report("timing the host", 0, 1)
    host, failed = measure_dispatch(profile.measured(), timer)
    return {"host": host, "failed": {**profile.facts.get("failed", {}), **failed}}


def _step_facts(device: str, report: Report) -> dict[str, Any]:
    """Small real steps to fit the rest of the host to; of a GPU also busy ones, and its memory.

    The small ones come twice, with the busy ones in between: a host's pace drifts within minutes.
    """

    def progress(what: str) -> Callable[[int, int], None]:
        return lambda done, total: report(f"timing {what} steps", done, total)

    precisions: tuple[Precision, ...] = ("fp32",) if device == "cpu" else ("fp32", "bf16")
    facts: dict[str, Any] = {}
    if device != "cpu":
        facts["library_bytes"] = library_bytes()
    steps = measure_small_steps(device, precisions, progress("small"))
    if device != "cpu":
        facts["device_steps"] = measure_busy_steps(device, precisions, progress("busy"))
    steps += measure_small_steps(device, precisions, progress("small"))
    return {**facts, "steps": steps}


def library_bytes() -> int:
    """What cuBLAS keeps for itself once a product has run: part of every training's memory.

    Every thread that multiplies has its own; autograd runs the backward pass in one of its own.
    """
    torch.cuda.empty_cache()
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.rand(256, 256, device="cuda", dtype=dtype)
        bias = torch.rand(256, device="cuda", dtype=dtype)
        torch.addmm(bias, matrix, matrix)
        torch.mm(matrix, matrix)
        torch.mm(matrix.requires_grad_(), matrix).sum().backward()  # type: ignore[no-untyped-call]
        matrix.grad = None
    del matrix, bias
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - before


def machine_facts(device: str) -> dict[str, Any]:
    """What a reader of the profile wants to know about where it was measured."""
    facts: dict[str, Any] = {
        "device_type": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "paceline": __version__,
        "cpu": cpu_model(),
        "threads": num_threads(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device_name": properties.name,
            "memory_bytes": properties.total_memory,
            "processors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    else:
        facts["device_name"] = facts["cpu"]
    return facts


def _check_same_machine(profile: Profile, path: Path, device: str) -> None:
    before = profile.facts.get("device_name")
    now = machine_facts(device)["device_name"]
    if before is not None and before != now:
        raise ValueError(
            f"The profile {path} is of a {before}, this machine has a {now}; give another --out."
        )


def _time_all(profile: Profile, path: Path, timer: Timer, budget_s: float, report: Report) -> None:
    planned = profile.planned()
    fresh: dict[Kernel, Timing] = {}
    failed: dict[str, str] = {}
    begun = flushed = time.monotonic()
    for index, kernel in enumerate(planned):
        now = time.monotonic()
        if now - flushed > _FLUSH_S:
            append(path, {}, fresh)
            fresh.clear()
            flushed = now
            report("timing kernels", index, len(planned))
        if now - begun > budget_s:
            break
        try:
            measured = timer.time(kernel)
        except (RuntimeError, NotImplementedError, IndexError, TypeError) as problem:
            failed.setdefault(kernel.op, " ".join(str(problem).split())[:200])
            del profile.timings[kernel]
            continue
        sources = profile.timings[kernel].sources
        timing = Timing(measured.seconds, measured.workspace_bytes, sources)
        profile.timings[kernel] = fresh[kernel] = timing
    profile.facts["failed"] = {**profile.facts.get("failed", {}), **failed}
    append(path, {"failed": profile.facts["failed"]}, fresh)
    report("timing kernels", len(planned) - len(profile.planned()), len(planned))


def cpu_model() -> str:
    """What this machine's processor is called."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
