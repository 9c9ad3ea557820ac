"""The kernel model: kernels in, seconds out, each with its origin and its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from paceline.cluster.device import Device
from paceline.kernels.family import FamilyName, family_of
from paceline.kernels.features import features_of, op_label
from paceline.kernels.fitted import FittedModel
from paceline.kernels.host import HostCosts
from paceline.kernels.products import corrected_s
from paceline.kernels.profile import Timing
from paceline.kernels.roofline import roofline_s, shortest_product_s
from paceline.kernels.transfer import (
    Numbers,
    is_grouped,
    is_same_chip,
    reached,
    transferred_s,
    work_of,
)
from paceline.kernels.workspace import Workspaces
from paceline.steps.kernel import Kernel, Operand

Origin = Literal["table", "mlp", "roofline"]

TABLE_UNCERTAINTY = 0.02
"""Of a measured kernel: the error of the sum of a step's kernels against the real step (H200)."""
_CLUELESS = 3.0  # networks that disagree by such factors have seen nothing like it
ROOFLINE_UNCERTAINTY = 0.7
"""Nothing similar was measured: half to double."""
CARRIED_UNCERTAINTY = 0.2
"""What transferring a kernel to another device adds: two of three networks then lie in the range of
their step (docs/evidence/devices.md)."""
GROUPED_UNCERTAINTY = 0.8
"""Of grouped convolutions in channels-last: whether cuDNN has a good kernel differs by version."""
NEVER_COMPARED_UNCERTAINTY = 0.6
"""Of a kind of device that no prediction was ever compared with."""
FUSED_SLOWDOWN = 1.2
"""How much longer a generated kernel takes than a sum of two tensors that moves as many bytes.

The median of resnet50, vit-b16, gpt2 and a denoiser on an H200 (docs/evidence/kernels.md).
"""
FUSED_UNCERTAINTY = 0.2
"""Of a generated kernel: what it reads and writes is our guess at the compiler's choice."""


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

    ``device`` may be another one than was measured: every answer is then transferred
    (:mod:`paceline.kernels.transfer`), and marked.
    """

    device: Device
    fitted: FittedModel | None = None
    table: Mapping[Kernel, Timing] = field(default_factory=dict)
    _known: dict[Kernel, Estimate] = field(default_factory=dict)
    _measured_s: dict[Kernel, float] = field(default_factory=dict)
    """Of each known kernel, on the device that was measured."""

    @property
    def is_carried(self) -> bool:
        """Whether the answers come from another device's measurements."""
        return self.fitted is not None and not self.device.has_figures_of(self.fitted.device)

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
        self._estimate_fused(kernels)
        missing = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._known]
        by_family: dict[FamilyName | None, list[Kernel]] = {}
        found: dict[Kernel, Estimate] = {}
        for kernel in missing:
            if self.fitted is not None and kernel in self.table:
                found[kernel] = self._measured(kernel)
            else:
                by_family.setdefault(family_of(kernel), []).append(kernel)
        for family, members in by_family.items():
            found.update(zip(members, self._predicted(family, members), strict=True))
        self._measured_s.update((kernel, each.seconds) for kernel, each in found.items())
        self._known.update(self._carried(found) if self.is_carried else found)
        return [self._known[kernel] for kernel in kernels]

    def _estimate_fused(self, kernels: Sequence[Kernel]) -> None:
        """Time what a compiler fused as a sum of two tensors that moves as many bytes."""
        fused = [k for k in dict.fromkeys(kernels) if k.op == "fused" and k not in self._known]
        if not fused:
            return
        sums = [sum_that_moves(kernel) for kernel in fused]
        for kernel, plain, found in zip(fused, sums, self.estimate(sums), strict=True):
            doubt = max(found.uncertainty, FUSED_UNCERTAINTY)
            self._known[kernel] = Estimate(FUSED_SLOWDOWN * found.seconds, found.origin, doubt)
            self._measured_s[kernel] = FUSED_SLOWDOWN * self._measured_s[plain]

    def seconds(
        self, kernels: Sequence[Kernel], *, arithmetic: Numbers = 1.0, memory: Numbers = 1.0
    ) -> npt.NDArray[np.float64]:
        """Seconds of each kernel, along the last axis.

        Args:
            kernels: The kernels to time.
            arithmetic: How many times as fast the device's multiprocessors are assumed to run. An
                array gives one answer per element, along the axes before the kernels'.
            memory: The same for the device's memory.

        A device that is :meth:`~paceline.Device.scaled` by as much gets the same answers.
        """
        base = np.array([each.seconds for each in self.estimate(kernels)])
        if np.all(np.equal(arithmetic, 1.0)) and np.all(np.equal(memory, 1.0)):
            return base
        return self._transferred_s(kernels, arithmetic=arithmetic, memory=memory)

    def seconds_where_measured(self, kernels: Sequence[Kernel]) -> npt.NDArray[np.float64]:
        """Seconds of each kernel on the device that was measured, before they are transferred."""
        self.estimate(kernels)
        return np.array([self._measured_s[kernel] for kernel in kernels])

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
            on = self._source
            return [
                Estimate(roofline_s(kernel, on), "roofline", ROOFLINE_UNCERTAINTY)
                for kernel in kernels
            ]
        ensemble = self.fitted.ensembles[family]
        features = features_of(kernels, family)
        found = ensemble.predict(features, [op_label(kernel) for kernel in kernels])
        seconds = rooflines_s(kernels, self.fitted.device) * np.exp(found.logs)
        on = self.fitted.device
        own = is_same_chip(on, self.device)
        if own:
            seconds *= found.longer  # another chip is slow elsewhere
        if family == "matmul":
            # What another device sustains is part of the transfer.
            least = [shortest_product_s(kernel, on, is_sustained=own) for kernel in kernels]
            seconds = np.maximum(seconds, least)
        return [
            Estimate(roofline_s(kernel, self._source), "roofline", ROOFLINE_UNCERTAINTY)
            if doubt > _CLUELESS and family != "recurrent"  # far from any roofline
            else Estimate(float(second), "mlp", float(doubt))
            for kernel, second, doubt in zip(kernels, seconds, found.unsure, strict=True)
        ]

    @property
    def _source(self) -> Device:
        """The device that was measured; without measurements, the device itself."""
        return self.device if self.fitted is None else self.fitted.device

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(self.table, self.fitted.workspaces if self.fitted is not None else None)

    def _carried(self, found: Mapping[Kernel, Estimate]) -> dict[Kernel, Estimate]:
        kernels = list(found)
        seconds = self._transferred_s(kernels)
        return {
            kernel: Estimate(
                float(second),
                found[kernel].origin,
                math.hypot(found[kernel].uncertainty, carried_uncertainty(kernel, self.device)),
            )
            for kernel, second in zip(kernels, seconds, strict=True)
        }

    def _transferred_s(
        self, kernels: Sequence[Kernel], *, arithmetic: Numbers = 1.0, memory: Numbers = 1.0
    ) -> npt.NDArray[np.float64]:
        work = work_of(kernels)
        measured = reached(self._source, work)
        wanted = reached(self.device, work, arithmetic=arithmetic, memory=memory)
        base = np.array([self._measured_s[kernel] for kernel in kernels])
        found = transferred_s(base, work, measured, wanted)
        if is_same_chip(self._source, self.device):
            return found
        return corrected_s(kernels, found, work, wanted, self.device)


def sum_that_moves(fused: Kernel) -> Kernel:
    """The sum of two float32 tensors that reads and writes as many bytes as a fused kernel."""
    third = Operand("f32", (max(fused.num_bytes // 12, 1),))
    return Kernel("add.Tensor", (third, third), outputs=(third,))


def carried_uncertainty(kernel: Kernel, device: Device) -> float:
    """What transferring a kernel adds to its uncertainty: one standard deviation, relative."""
    if not device.is_compared:
        return NEVER_COMPARED_UNCERTAINTY
    return GROUPED_UNCERTAINTY if is_grouped(kernel) else CARRIED_UNCERTAINTY


def rooflines_s(kernels: Sequence[Kernel], device: Device) -> npt.NDArray[np.float64]:
    """The rooflines of many kernels."""
    return np.array([roofline_s(kernel, device) for kernel in kernels])
