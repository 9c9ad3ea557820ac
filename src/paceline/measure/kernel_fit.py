"""Trains the networks of a profile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.cluster.device import Device
from paceline.kernels.family import FAMILIES, FamilyName, family_of, packet_of
from paceline.kernels.features import features_of, op_label
from paceline.kernels.fitted import FittedModel
from paceline.kernels.host import HostCosts, fit_host
from paceline.kernels.mlp import Ensemble, adapt_ensemble, train_ensemble
from paceline.kernels.model import KernelModel, rooflines_s
from paceline.kernels.profile import Profile, Timing
from paceline.kernels.workspace import LEARNED, shares_of
from paceline.measure.device_facts import device_of
from paceline.steps import Capture, Kernel, capture_step, zoo_step

Report = Callable[[str, int, int], None]
"""What is going on, how much of it is done, how much there is."""
NUM_STEPS = 3000
"""Training steps for each family."""
_MIN_KERNELS = 40  # a family with fewer is left to the roofline
_MIN_TO_ADAPT = 8  # or to what was learned on another device, if it has as many
_BUSY = 0.9  # of a step: below that the host limits it
# A CPU's call returns when it has computed: of more bytes than these, that is most of its time.
_DISPATCHED_BYTES = 1 << 19


def fit_profile(
    profile: Profile,
    *,
    report: Report = lambda what, done, total: None,
    without: Collection[str] = (),
    num_steps: int = NUM_STEPS,
    seed: int = 0,
    start: FittedModel | None = None,
) -> FittedModel:
    """Train the networks of a profile and fit the host's costs.

    The same profile, seed and number of threads give the same model.

    Args:
        profile: The measured kernels and the machine's facts.
        report: Called with what is being done, how much of it is done, and how much there is.
        without: Networks of the zoo whose kernels and steps are not used, to test on them.
        num_steps: Training steps for each family.
        seed: Of the first weights and the batches.
        start: A model of another device. Each family is then trained twice, from random weights
            and from this model's; the one with the smaller error on unseen kernels is kept. With
            few kernels that is mostly the latter.
    """
    timings = {
        kernel: timing
        for kernel, timing in profile.measured().items()
        if not set(timing.sources) & set(without)
    }
    families = group_by_family(timings, least=_MIN_KERNELS if start is None else _MIN_TO_ADAPT)
    if not families:
        raise ValueError("The profile has no measured kernels; run `paceline measure kernels`.")
    device = device_of(profile)
    spacious = [name for name in LEARNED if _need_memory(families.get(name, ()), timings)]
    each = num_steps + (0 if start is None else _adapting_steps(num_steps))
    total = each * (len(families) + len(spacious))
    done = 0

    def counted(what: str) -> Callable[[int], None]:
        def progress(steps: int) -> None:
            nonlocal done
            done += steps
            if done % 50 == 0:
                report(f"fitting {what}", done, total)

        return progress

    # Of a CPU, what the networks are unsure of is right on average (docs/evidence/kernels.md).
    is_skewed = profile.facts.get("device_type") != "cpu"
    ensembles: dict[FamilyName, Ensemble] = {}
    workspaces: dict[FamilyName, Ensemble] = {}
    for name, kernels in families.items():
        data = _time_data(name, kernels, timings, device)
        if not is_skewed:
            data = data._replace(typical=None)
        known = None if start is None else start.ensembles.get(name)
        learned = _learn(data, known, num_steps, seed, counted(name))
        if learned is not None:
            ensembles[name] = learned
        if name not in spacious:
            continue
        data = _workspace_data(data, {kernel: timings[kernel] for kernel in kernels})
        known = None if start is None else start.workspaces.get(name)
        learned = _learn(data, known, num_steps, seed, counted(f"{name}'s memory"))
        if learned is not None:
            workspaces[name] = learned
    kernels_alone = FittedModel(
        device=device,
        ensembles=ensembles,
        host=HostCosts(),
        workspaces=workspaces,
        facts=profile.facts,
    )
    host = _fit_host(profile, kernels_alone, timings, without, report)
    gap_s = _fit_gap_s(profile, kernels_alone, timings, without, report)
    return replace(kernels_alone, host=host, gap_s=gap_s)


class _Data(NamedTuple):
    """The kernels of a family, as its networks see them."""

    features: npt.NDArray[np.float32]
    ops: list[str]
    targets: npt.NDArray[np.float32]
    importance: npt.NDArray[np.float32]
    typical: npt.NDArray[np.bool_] | None
    """Which of them networks run; None where that does not matter."""


def _time_data(
    name: FamilyName, kernels: list[Kernel], timings: Mapping[Kernel, Timing], device: Device
) -> _Data:
    seconds = np.array([timings[kernel].seconds for kernel in kernels])
    of_networks = np.array([bool(timings[kernel].sources) for kernel in kernels])
    return _Data(
        features=features_of(kernels, name),
        ops=[op_label(kernel) for kernel in kernels],
        targets=np.log(seconds / rooflines_s(kernels, device)).astype(np.float32),
        importance=importance(seconds) * prevalence(kernels, timings),
        typical=of_networks if of_networks.any() else ~of_networks,
    )


def _workspace_data(data: _Data, timings: Mapping[Kernel, Timing]) -> _Data:
    """The same kernels with what they need besides their operands; all count the same."""
    even = np.ones(len(data.ops), dtype=np.float32)
    return data._replace(targets=shares_of(timings), importance=even, typical=None)


def _need_memory(kernels: Iterable[Kernel], timings: Mapping[Kernel, Timing]) -> bool:
    """Whether any kernel needs more than its operands; on a CPU none does."""
    return any(timings[kernel].workspace_bytes for kernel in kernels)


def _learn(
    data: _Data,
    start: Ensemble | None,
    num_steps: int,
    seed: int,
    progress: Callable[[int], None],
) -> Ensemble | None:
    """From nothing, or going on from ``start``: what errs less on kernels it has not seen."""
    found = []
    if len(data.ops) >= _MIN_KERNELS:
        found.append(train_ensemble(*data, num_steps=num_steps, seed=seed, progress=progress))
    if start is not None:
        few = _adapting_steps(num_steps)
        found.append(adapt_ensemble(start, *data, num_steps=few, seed=seed, progress=progress))
    return min(found, key=lambda each: each.residual, default=None)


def _adapting_steps(num_steps: int) -> int:
    """Going on takes fewer steps than learning from nothing."""
    return max(20, num_steps // 5)


def group_by_family(
    timings: Collection[Kernel], *, least: int = _MIN_KERNELS
) -> dict[FamilyName, list[Kernel]]:
    """The kernels of each family, where there are enough to learn from."""
    groups: dict[FamilyName, list[Kernel]] = {name: [] for name in FAMILIES}
    for kernel in timings:
        family = family_of(kernel)
        if family is not None:
            groups[family].append(kernel)
    return {name: group for name, group in groups.items() if len(group) >= least}


def importance(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """How much a kernel's error counts: steps are made of the long ones."""
    weights: npt.NDArray[np.float64] = np.clip((seconds / np.median(seconds)) ** 0.3, 0.3, 2.0)
    return weights.astype(np.float32)


def prevalence(
    kernels: Sequence[Kernel], timings: Mapping[Kernel, Timing]
) -> npt.NDArray[np.float32]:
    """How often to count a kernel, of which a profile has fewer than steps do; 1 on average.

    Random neighbours outnumber what networks really run, and most of them are of images: of
    signals and volumes a profile has a tenth as many.
    """
    weights = np.array(
        [
            (_PREVALENCE if timings[each].sources else 1.0)
            * (_PREVALENCE if _is_of_signals_or_volumes(each) else 1.0)
            for each in kernels
        ]
    )
    scaled: npt.NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)
    return scaled


_PREVALENCE = 3.0
"""On 3,000 convolutions of networks that were left out, 1 and 3 were tried; 3 was better."""


def _is_of_signals_or_volumes(kernel: Kernel) -> bool:
    is_convolution = packet_of(kernel.op).startswith("convolution")
    return is_convolution and len(kernel.operands[0].shape) != 4


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


def _dispatch_s(profile: Profile) -> dict[str, float]:
    """Seconds per bare call of each operator, as far as they can be told from what it computes.

    For an operator that is left out, the median is assumed.
    """
    dispatch_s: dict[str, float] = profile.facts["host"]["dispatch_s"]
    if profile.facts.get("device_type") != "cpu":
        return dispatch_s
    smallest: dict[str, tuple[int, float]] = {}
    for kernel, timing in profile.measured().items():
        assert timing.seconds is not None
        own = (kernel.num_bytes, timing.seconds)
        smallest[kernel.op] = min(own, smallest.get(kernel.op, own))
    found = {}
    for op, seconds in dispatch_s.items():
        # A view, or another name of an operator, has no kernel of its own.
        num_bytes, kernel_s = smallest.get(op, (0, seconds))
        if num_bytes <= _DISPATCHED_BYTES:
            # A kernel takes its call, and what it computes; it may have been measured later.
            found[op] = min(seconds, kernel_s)
    return found


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
    bare = HostCosts(
        dispatch_s=_dispatch_s(profile),
        tensor_s=facts["tensor_s"],
        recurrent_s=facts.get("recurrent_s", 0.0),
    )
    known: dict[tuple[object, ...], Capture] = {}  # the same step was measured more than once
    captures: list[Capture] = []
    for index, step in enumerate(steps):
        report("fitting the host", index, len(steps))
        key = (step["model"], step["batch"], step["precision"])
        if key not in known:
            known[key] = _captured(step)
        captures.append(known[key])
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
