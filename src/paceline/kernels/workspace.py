"""Workspaces of kernels that were not measured: what the most alike measured ones needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.kernels.family import FamilyName, family_of, family_of_op
from paceline.kernels.features import features_of
from paceline.kernels.profile import Timing
from paceline.kernels.table import Table
from paceline.steps.kernel import Kernel

_NEIGHBOURS = 5
_WITH_WORKSPACE: tuple[FamilyName, ...] = (
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weight",
    "attention",
    "layer_norm",
)
"""The families whose kernels may ask for much memory beside their operands."""


class Workspaces:
    """Looks up the nearest measured kernels of a family."""

    def __init__(self, table: Mapping[Kernel, Timing]) -> None:
        self._table = table
        self._known: dict[FamilyName, _Points | None] = {}

    def _points(self, family: FamilyName) -> _Points | None:
        if family not in self._known:
            kernels = self._kernels(family) if family in _WITH_WORKSPACE else []
            shares = [self._table[k].workspace_bytes / max(k.num_bytes, 1) for k in kernels]
            self._known[family] = (
                _Points(features_of(kernels, family), np.array(shares)) if kernels else None
            )
        return self._known[family]

    def _kernels(self, family: FamilyName) -> list[Kernel]:
        if isinstance(self._table, Table):
            return list(self._table.kernels_of(lambda op: family_of_op(op) == family))
        return [kernel for kernel in self._table if family_of(kernel) == family]

    def estimate(self, family: FamilyName, kernels: Sequence[Kernel]) -> list[int]:
        """Bytes for each kernel: the median share of its neighbours, times its own bytes."""
        points = self._points(family)
        if points is None:
            return [0] * len(kernels)
        shares = points.nearest(features_of(kernels, family))
        return [
            round(share * kernel.num_bytes) for share, kernel in zip(shares, kernels, strict=True)
        ]


class _Points:
    def __init__(self, features: npt.NDArray[np.float32], shares: npt.NDArray[np.float64]) -> None:
        self._mean, self._scale = features.mean(0), features.std(0) + 1e-3
        self._features = (features - self._mean) / self._scale
        self._shares = shares

    def nearest(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        found = np.empty(len(features))
        for row, point in enumerate((features - self._mean) / self._scale):
            distances = ((self._features - point) ** 2).sum(1)
            count = min(_NEIGHBOURS, len(distances))
            found[row] = np.median(self._shares[np.argpartition(distances, count - 1)[:count]])
        return found
