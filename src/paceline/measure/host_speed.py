"""What this machine's processor would be as a host: seconds, and no GPU."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from paceline.cluster.host import host_names, load_host
from paceline.kernels.library import load_kernel_model
from paceline.measure.host import views
from paceline.measure.kernels import cpu_model
from paceline.measure.timer import issue_s

_ROUNDS = 40
_REFERENCE = "h200"


@dataclass(frozen=True, kw_only=True)
class HostSpeed:
    """How fast a processor issues operators."""

    cpu: str
    speed: float
    """How many times as fast as the host of the H200's profile."""
    call_s: float
    """Of one operator that starts no kernel, the median of several."""
    spread: float
    """By how much the operators disagree: standard deviation over mean."""
    nearest: str
    """The known host with the closest speed."""


def measure_host_speed() -> HostSpeed:
    """Compare operators that start no kernel with those of the H200's profile.

    ``view``, ``transpose`` and their like cost the host alone, so they take as long on a machine
    without a GPU. Of each the fastest of several rounds counts, since other work on the machine
    only ever makes it slower.
    """
    device = torch.device("cpu")
    known_s = load_kernel_model(_REFERENCE).host.dispatch_s
    runs = {op: run for op, run in views(device).items() if op in known_s}
    best_s = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for op, run in runs.items():
            best_s[op] = min(best_s[op], issue_s(run, device))
    ratios = [known_s[op] / best_s[op] for op in runs]
    speed = statistics.median(ratios)
    return HostSpeed(
        cpu=cpu_model(),
        speed=speed,
        call_s=statistics.median(best_s.values()),
        spread=statistics.stdev(ratios) / statistics.mean(ratios),
        nearest=min(host_names(), key=lambda name: abs(load_host(name).speed / speed - 1)),
    )
