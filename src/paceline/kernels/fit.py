"""Train the networks of a profile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.kernels.device_facts import device_of
from paceline.kernels.family import FAMILIES, FamilyName, family_of
from paceline.kernels.features import features_of, op_label
from paceline.kernels.fitted import FittedModel
from paceline.kernels.host import HostCosts, fit_host
from paceline.kernels.mlp import Ensemble, train_ensemble
from paceline.kernels.model import KernelModel, rooflines_s
from paceline.kernels.profile import Profile, Timing
from paceline.steps import Capture, Kernel, capture_step, zoo_step

Report = Callable[[str, int, int], None]
"""What is going on, how much of it is done, how much there is."""
_MIN_KERNELS = 40  # a family with fewer is left to the roofline
_BUSY = 0.9  # of a step: below that the host limits it


def fit_profile(
    profile: Profile,
    *,
    report: Report = lambda what, done, total: None,
    without: Collection[str] = (),
    num_steps: int = 1500,
    seed: int = 0,
) -> FittedModel:
    """Fit a profile; nothing of the networks in ``without`` is used (to test on them).

    The same profile, seed and number of threads give the same model.
    """
    timings = {
        kernel: timing
        for kernel, timing in profile.measured().items()
        if not set(timing.sources) & set(without)
    }
    families = group_by_family(timings)
    if not families:
        raise ValueError("The profile has no measured kernels; run `paceline measure kernels`.")
    device = device_of(profile)
    total = num_steps * len(families)
    done = 0
    ensembles: dict[FamilyName, Ensemble] = {}
    for name, kernels in families.items():

        def progress(steps: int, name: str = name) -> None:
            nonlocal done
            done += steps
            if done % 50 == 0:
                report(f"fitting {name}", done, total)

        seconds = np.array([timings[kernel].seconds for kernel in kernels])
        ratios = np.log(seconds / rooflines_s(kernels, device))
        ensembles[name] = train_ensemble(
            features_of(kernels, name),
            [op_label(kernel) for kernel in kernels],
            ratios.astype(np.float32),
            importance(seconds),
            num_steps=num_steps,
            seed=seed,
            progress=progress,
        )
    kernels_alone = FittedModel(
        device=device, ensembles=ensembles, host=HostCosts(), facts=profile.facts
    )
    host = _fit_host(profile, kernels_alone, timings, without, report)
    gap_s = _fit_gap_s(profile, kernels_alone, timings, without, report)
    return replace(kernels_alone, host=host, gap_s=gap_s)


def group_by_family(timings: Collection[Kernel]) -> dict[FamilyName, list[Kernel]]:
    """The kernels of each family, where there are enough to learn from."""
    groups: dict[FamilyName, list[Kernel]] = {name: [] for name in FAMILIES}
    for kernel in timings:
        family = family_of(kernel)
        if family is not None:
            groups[family].append(kernel)
    return {name: group for name, group in groups.items() if len(group) >= _MIN_KERNELS}


def importance(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """How much a kernel's error counts: steps are made of the long ones."""
    weights: npt.NDArray[np.float64] = np.clip((seconds / np.median(seconds)) ** 0.3, 0.3, 2.0)
    return weights.astype(np.float32)


def _fit_gap_s(
    profile: Profile,
    fitted: FittedModel,
    timings: dict[Kernel, Timing],
    without: Collection[str],
    report: Report,
) -> float:
    """What real steps that keep the GPU busy take beyond their kernels, for each call of them.

    Kernels are timed by repeating one. In a step each follows another: on an H200 the GPU then
    rests for 3 us, by CUDA's own profiler. Least squares of relative errors.
    """
    model = KernelModel(fitted.device, fitted, timings)
    shares, missing = [], []
    steps = profile.facts.get("device_steps", [])
    for index, step in enumerate(steps):
        report("fitting rests between kernels", index, len(steps))
        if step["model"] in without or step["busy_s"] < _BUSY * step["step_s"]:
            continue
        capture = _captured(step)
        kernels_s = sum(each.seconds for each in model.estimate(capture.kernels()))
        num_calls = sum(bool(call.kernels) for call in capture.calls)
        shares.append(num_calls / step["step_s"])
        missing.append(1 - kernels_s / step["step_s"])
    if not shares:
        return 0.0
    return max(0.0, float(np.dot(shares, missing) / np.dot(shares, shares)))


def _captured(step: Mapping[str, Any]) -> Capture:
    return capture_step(zoo_step(step["model"], batch=step["batch"], precision=step["precision"]))


def _fit_host(
    profile: Profile,
    fitted: FittedModel,
    timings: dict[Kernel, Timing],
    without: Collection[str],
    report: Report,
) -> HostCosts:
    facts = profile.facts.get("host")
    steps = [step for step in profile.facts.get("steps", []) if step["model"] not in without]
    if not facts or not steps:
        return HostCosts()
    bare = HostCosts(dispatch_s=facts["dispatch_s"], tensor_s=facts["tensor_s"])
    captures: list[Capture] = []
    for index, step in enumerate(steps):
        report("fitting the host", index, len(steps))
        captures.append(_captured(step))
    model = KernelModel(fitted.device, fitted, timings)
    device_s = [sum(e.seconds for e in model.estimate(each.kernels())) for each in captures]
    pairs = list(zip(steps, device_s, strict=True))
    if profile.facts.get("device_type") == "cpu":
        # A CPU's steps are kernels and host, one after the other: what is left is the host's.
        times = [max(step["step_s"] - kernels_s, 1e-6) for step, kernels_s in pairs]
        return fit_host(bare, captures, times, scale_s=[step["step_s"] for step in steps])
    # Where the GPU is not the limit, steps one after another tell more than one that is issued.
    times = [
        step["step_s" if kernels_s < _BUSY * step["step_s"] else "host_s"]
        for step, kernels_s in pairs
    ]
    return fit_host(bare, captures, times, scale_s=times)
