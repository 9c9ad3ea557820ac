"""Workspaces of kernels that were not measured.

Those of convolutions are learned, as their times are: half of them need none, and most others
copies of their operands in another layout. Recurrent layers have a formula, fitted to the measured
ones. For all others, it is what the most similar measured kernels needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.kernels.family import FamilyName, bytes_of, family_of, family_of_op
from paceline.kernels.features import features_of, op_label
from paceline.kernels.mlp import Ensemble
from paceline.kernels.profile import Timing
from paceline.kernels.recurrent import Algorithm, recurrent_algorithm, workspace_terms
from paceline.kernels.table import Table
from paceline.steps.kernel import Kernel

_NEIGHBOURS = 5
_LEAST_TO_FIT = 20
_SMALL_BYTES = 20 << 20
_MOST_POINTS = 1500  # of a family and dtype: reading more takes longer than it helps
_WITH_WORKSPACE: tuple[FamilyName, ...] = (
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weight",
    "attention",
    "layer_norm",
)
"""The families whose kernels may need much memory besides their operands."""
LEARNED: tuple[FamilyName, ...] = _WITH_WORKSPACE[:3]
"""Those whose workspaces networks learn, where enough kernels were measured."""
_MOST_SHARE = 4.0  # of a kernel's own bytes: few need more, and none of them are large
_LEAST_SHARE = 0.02  # below this it is none


def shares_of(timings: Mapping[Kernel, Timing]) -> npt.NDArray[np.float32]:
    """What each kernel's workspace is of its own bytes, for networks to learn."""
    shares = [timing.workspace_bytes / bytes_of(kernel) for kernel, timing in timings.items()]
    return np.minimum(np.array(shares, dtype=np.float32), _MOST_SHARE)


class Workspaces:
    """Asks the networks of a family; where there are none, its nearest measured kernels."""

    def __init__(
        self,
        table: Mapping[Kernel, Timing],
        learned: Mapping[FamilyName, Ensemble] | None = None,
    ) -> None:
        self._table = table
        self._learned = learned or {}
        self._known: dict[tuple[FamilyName, str], _Points | None] = {}
        self._times: dict[_Way, npt.NDArray[np.float64] | None] = {}
        """How often each term of a recurrent workspace comes."""

    def estimate(self, family: FamilyName, kernel: Kernel) -> int:
        """A kernel's bytes: a share of its own bytes, as learned or its neighbours' median."""
        if family == "recurrent":
            return self._recurrent_bytes(kernel)
        if family in self._learned:
            rows = features_of([kernel], family)
            share = float(self._learned[family].predict(rows, [op_label(kernel)]).logs[0])
            return round(share * bytes_of(kernel)) if share > _LEAST_SHARE else 0
        points = self._points(family, kernel.operands[0].dtype if kernel.operands else "f32")
        if points is None:
            return 0
        return round(points.nearest(features_of([kernel], family)) * bytes_of(kernel))

    def _recurrent_bytes(self, kernel: Kernel) -> int:
        way = _way(kernel)
        if way not in self._times:
            self._times[way] = self._fit_recurrent(way)
        times = self._times[way]
        return 0 if times is None else round(float(np.dot(workspace_terms(kernel), times)))

    def _fit_recurrent(self, way: _Way) -> npt.NDArray[np.float64] | None:
        """Non-negative least squares of relative errors; small ones count less.

        What was hardly measured is taken for all layers of that operator and dtype.
        """
        from scipy.optimize import nnls

        found = self._measured("recurrent", way.dtype)
        of_all = [kernel for kernel in found if kernel.op == way.op]
        own = [kernel for kernel in of_all if _way(kernel) == way]
        own = own if len(own) >= _LEAST_TO_FIT else of_all
        if len(own) < _LEAST_TO_FIT:
            return None
        needed = np.array([found[kernel].workspace_bytes for kernel in own], dtype=np.float64)
        scale = needed + _SMALL_BYTES
        terms = np.array([workspace_terms(kernel) for kernel in own])
        times: npt.NDArray[np.float64] = nnls(terms / scale[:, None], needed / scale)[0]
        return times

    def _points(self, family: FamilyName, dtype: str) -> _Points | None:
        if (family, dtype) not in self._known:
            found = self._measured(family, dtype) if family in _WITH_WORKSPACE else {}
            shares = [each.workspace_bytes / bytes_of(k) for k, each in found.items()]
            self._known[family, dtype] = (
                _Points(features_of(list(found), family), np.array(shares)) if found else None
            )
        return self._known[family, dtype]

    def _measured(self, family: FamilyName, dtype: str) -> dict[Kernel, Timing]:
        if isinstance(self._table, Table):
            return self._table.some_of(
                lambda op: family_of_op(op) == family, dtype=dtype, most=_MOST_POINTS
            )
        return {
            kernel: each
            for kernel, each in self._table.items()
            if family_of(kernel) == family and any(o.dtype == dtype for o in kernel.operands)
        }


class _Way(NamedTuple):
    """Recurrent layers whose workspaces add up alike."""

    op: str
    dtype: str
    algorithm: Algorithm
    kind: str


def _way(kernel: Kernel) -> _Way:
    kind: str = kernel.args[1]
    return _Way(kernel.op, kernel.operands[0].dtype, recurrent_algorithm(kernel), kind)


class _Points:
    def __init__(self, features: npt.NDArray[np.float32], shares: npt.NDArray[np.float64]) -> None:
        self._mean, self._scale = features.mean(0), features.std(0) + 1e-3
        self._features = (features - self._mean) / self._scale
        self._shares = shares

    def nearest(self, features: npt.NDArray[np.float32]) -> float:
        """The median share of the nearest points to a row of features."""
        point = (features[0] - self._mean) / self._scale
        distances = ((self._features - point) ** 2).sum(1)
        count = min(_NEIGHBOURS, len(distances))
        return float(np.median(self._shares[np.argpartition(distances, count - 1)[:count]]))
