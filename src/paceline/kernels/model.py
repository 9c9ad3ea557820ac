"""The kernel model: kernels in, seconds out, each with its origin and its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.cluster.device import Device
from paceline.kernels.family import FamilyName, family_of, flop_of
from paceline.kernels.features import features_of, op_label
from paceline.kernels.fitted import FittedModel
from paceline.kernels.host import HostCosts
from paceline.kernels.profile import Timing
from paceline.kernels.roofline import LAUNCH_S, peak_flops, roofline_s
from paceline.kernels.workspace import Workspaces
from paceline.steps.kernel import Kernel

Origin = Literal["table", "mlp", "roofline"]
Numbers: TypeAlias = float | npt.NDArray[np.float64]

TABLE_UNCERTAINTY = 0.02
"""Of a measured kernel: the error of the sum of a step's kernels against the real step (H200)."""
ROOFLINE_UNCERTAINTY = 0.7
"""Nothing similar was measured: half to double."""
GOOD_EFFICIENCY = 0.8
"""The share of peak arithmetic that large convolutions and products reach on an older GPU."""
CARRIED_UNCERTAINTY = 0.3
"""Of an efficiency learned on one device and transferred to another."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one kernel takes."""

    seconds: float
    origin: Origin
    uncertainty: float
    """One standard deviation, relative."""


@dataclass
class KernelModel:
    """Asks the measured table, then the networks, then the roofline; says which one answered.

    ``device`` may be another one than was measured: every answer is then scaled by the ratio of
    the two devices' rooflines (:func:`carried_s`), and marked.
    """

    device: Device
    fitted: FittedModel | None = None
    table: Mapping[Kernel, Timing] = field(default_factory=dict)
    _known: dict[Kernel, Estimate] = field(default_factory=dict)

    @property
    def is_carried(self) -> bool:
        """Whether the answers come from another device's measurements."""
        return self.fitted is not None and self.fitted.device != self.device

    @property
    def host(self) -> HostCosts:
        """The host's costs; nothing if no host was measured."""
        return self.fitted.host if self.fitted is not None else HostCosts()

    @property
    def gap_s(self) -> float:
        """How long the device rests between the kernels of two calls."""
        return self.fitted.gap_s if self.fitted is not None else 0.0

    def estimate(self, kernels: Iterable[Kernel]) -> list[Estimate]:
        """One estimate for each kernel."""
        kernels = list(kernels)
        missing = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._known]
        by_family: dict[FamilyName | None, list[Kernel]] = {}
        for kernel in missing:
            if self.fitted is not None and kernel in self.table:
                self._known[kernel] = self._carried(kernel, self._measured(kernel))
            else:
                by_family.setdefault(family_of(kernel), []).append(kernel)
        for family, members in by_family.items():
            self._known.update(zip(members, self._predicted(family, members), strict=True))
        return [self._known[kernel] for kernel in kernels]

    def seconds(
        self, kernels: Sequence[Kernel], *, arithmetic: Numbers = 1.0, memory: Numbers = 1.0
    ) -> npt.NDArray[np.float64]:
        """Seconds of each kernel, along the last axis.

        Args:
            kernels: The kernels to time.
            arithmetic: How many times as fast the device's arithmetic is assumed to be. An array
                gives one answer per element, along the axes before the kernels'.
            memory: The same for the device's memory.
        """
        base = np.array([each.seconds for each in self.estimate(kernels)])
        if np.all(np.equal(arithmetic, 1.0)) and np.all(np.equal(memory, 1.0)):
            return base
        flop = np.array([flop_of(kernel) for kernel in kernels], dtype=np.float64)
        peak = np.array([peak_flops(kernel, self.device) for kernel in kernels])
        faster = peak * np.asarray(arithmetic)[..., None]
        return np.asarray(_carried_s(base, flop, peak, faster, np.asarray(memory)[..., None]))

    def workspace_bytes(self, kernel: Kernel) -> int:
        """The memory that a kernel needs besides operands and outputs; 0 if it is not known."""
        if self.fitted is None:
            return 0
        timing = self.table.get(kernel)
        if timing is not None:
            return timing.workspace_bytes
        family = family_of(kernel)
        return self._workspaces.estimate(family, kernel) if family in self.fitted.ensembles else 0

    def _measured(self, kernel: Kernel) -> Estimate:
        seconds = self.table[kernel].seconds
        assert seconds is not None
        return Estimate(seconds, "table", TABLE_UNCERTAINTY)

    def _predicted(self, family: FamilyName | None, kernels: Sequence[Kernel]) -> list[Estimate]:
        if self.fitted is None or family is None or family not in self.fitted.ensembles:
            return [
                Estimate(roofline_s(kernel, self.device), "roofline", ROOFLINE_UNCERTAINTY)
                for kernel in kernels
            ]
        ensemble = self.fitted.ensembles[family]
        features = features_of(kernels, family)
        logs, unsure = ensemble.predict(features, [op_label(kernel) for kernel in kernels])
        seconds = rooflines_s(kernels, self.fitted.device) * np.exp(logs)
        return [
            self._carried(kernel, Estimate(float(second), "mlp", float(doubt)))
            for kernel, second, doubt in zip(kernels, seconds, unsure, strict=True)
        ]

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(self.table)

    def _carried(self, kernel: Kernel, estimate: Estimate) -> Estimate:
        if not self.is_carried:
            return estimate
        assert self.fitted is not None
        return Estimate(
            carried_s(kernel, estimate.seconds, self.fitted.device, self.device),
            estimate.origin,
            float(np.hypot(estimate.uncertainty, CARRIED_UNCERTAINTY)),
        )


def carried_s(kernel: Kernel, seconds: float, measured_on: Device, device: Device) -> float:
    """A kernel's time on a device that was not measured, from that on one that was.

    How far a kernel stays under the memory's roof is carried over: its time scales with the
    memory's bandwidth. It cannot pass under the arithmetic's roof, lowered to what good kernels
    reach. A slow multiplier shows more of its peak than a fast one, which waits for other things.
    """
    return float(
        _carried_s(
            seconds,
            flop_of(kernel),
            peak_flops(kernel, measured_on),
            peak_flops(kernel, device),
            device.memory_bandwidth_bytes_per_s / measured_on.memory_bandwidth_bytes_per_s,
        )
    )


def _carried_s(
    seconds: Numbers, flop: Numbers, measured_flops: Numbers, flops: Numbers, memory: Numbers
) -> Numbers:
    """:func:`carried_s` for numbers or arrays; ``memory`` is the ratio of the bandwidths."""
    work_s = np.maximum(seconds - LAUNCH_S, 0.0)
    shown = flop / measured_flops / np.maximum(work_s, 1e-12)
    arithmetic_s = flop / flops / np.maximum(shown, GOOD_EFFICIENCY)
    return np.maximum(work_s / memory, arithmetic_s) + np.minimum(seconds, LAUNCH_S)


def rooflines_s(kernels: Sequence[Kernel], device: Device) -> npt.NDArray[np.float64]:
    """The rooflines of many kernels."""
    return np.array([roofline_s(kernel, device) for kernel in kernels])
