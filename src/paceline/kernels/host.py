"""What the host pays to issue a step in eager mode.

Small steps are limited by Python and the dispatcher, not by the device. The host's time for a step
does not depend on the batch; it is

    sum over calls of dispatch(op)  x  a factor for the phase  (autograd records, or runs, or not)
    + seconds per module call + seconds per autograd function + seconds per step,

where dispatch(op) is measured for every operator by itself, and the other figures are fitted (non-
negative least squares, relative errors) to real steps so small that the device never holds up the
host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paceline.kernels.recurrent import recurrent_steps
from paceline.steps.capture import Capture
from paceline.steps.grouped import GROUPED
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import Call

_MOST_UNSORTED = 3072  # in PyTorch's embedding_dense_backward_cuda
_TERMS = ("forward", "backward", "optimizer", "modules", "nodes", "steps")


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Seconds on the host."""

    dispatch_s: Mapping[str, float] = field(default_factory=dict)
    """Of one bare call, by operator."""
    tensor_s: float = 0.0
    """Of every tensor in the lists of a foreach operator."""
    recurrent_s: float = 0.0
    """Of every step, layer and direction of a recurrent layer, whose one call launches them all."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """The fitted figures: a factor for each of three phases, and seconds per module call, per
    autograd function (``nodes``) and per step."""
    spread: float = 0.15
    """Root mean square of the relative error on the steps it was fitted to."""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict with."""
        return bool(self.factors)

    def calls_s(self, capture: Capture) -> npt.NDArray[np.float64]:
        """Seconds per call; modules and autograd functions are spread over their phase's calls."""
        if not self.is_known:
            return np.zeros(len(capture.calls))
        phases = Counter(call.phase for call in capture.calls)
        extra = {
            "forward": self._per_call("modules", capture.num_modules, phases["forward"]),
            "backward": self._per_call("nodes", capture.num_autograd_functions, phases["backward"]),
            "optimizer": self._per_call("steps", 1, phases["optimizer"]),
        }
        return np.array(
            [
                self.factors[call.phase] * self.bare_s(call) + extra[call.phase]
                for call in capture.calls
            ]
        )

    def _per_call(self, term: str, count: int, num_calls: int) -> float:
        return self.factors[term] * count / num_calls if num_calls else 0.0

    def bare_s(self, call: Call) -> float:
        """The bare dispatch of a call; an operator that was not measured costs the median."""
        if call.op == GROUPED and call.kernels:  # each group is multiplied by a call of its own
            return len(call.kernels) * self.dispatch_s.get(call.kernels[0].op, self._median_s)
        known = self.dispatch_s.get(dispatch_name(call.op, call.kernels))
        if known is None:
            known = self.dispatch_s.get(call.op, self._median_s)
        extra = max(call.num_tensors - 8, 0) if call.op.startswith(("_foreach", "_fused")) else 0
        return known + self.tensor_s * extra + self.recurrent_s * _recurrent_steps(call)

    @property
    def _median_s(self) -> float:
        return float(np.median(list(self.dispatch_s.values()))) if self.dispatch_s else 0.0

    def terms(self, capture: Capture) -> list[float]:
        """What the fitted figures are multiplied with, in their order."""
        bare = dict.fromkeys(_TERMS[:3], 0.0)
        for call in capture.calls:
            bare[call.phase] += self.bare_s(call)
        return [*bare.values(), capture.num_modules, capture.num_autograd_functions, 1.0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "dispatch_s": dict(self.dispatch_s),
            "tensor_s": self.tensor_s,
            "recurrent_s": self.recurrent_s,
            "factors": dict(self.factors),
            "spread": self.spread,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` made; ValueError or TypeError for anything else."""
        made = cls(**values)
        numbers = [made.tensor_s, made.recurrent_s, made.spread]
        numbers += [*made.dispatch_s.values(), *made.factors.values()]
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError("the host's costs are not numbers of at least 0")
        if made.factors and set(made.factors) != set(_TERMS):
            raise ValueError(f"the host's factors are not {', '.join(_TERMS)}")
        return made


def dispatch_name(op: str, kernels: Sequence[Kernel]) -> str:
    """Under which an operator's dispatch is known: sizes may decide how much it launches.

    Above 3,072 indices, the dense gradient of an embedding sorts them on a GPU, in many launches:
    0.15 ms instead of 0.015 on an H200's host.
    """
    if not kernels or kernels[0].op != "embedding_dense_backward":
        return op
    known = kernels[0].op  # of bags as well
    indices = kernels[0].operands[1]
    return f"{known}.sorted" if indices.numel > _MOST_UNSORTED else known


def _recurrent_steps(call: Call) -> int:
    """Steps of recurrent layers that a call launches one by one."""
    if not call.op.startswith("_cudnn_rnn"):
        return 0
    return sum(map(recurrent_steps, call.kernels))


def fit_host(
    bare: HostCosts,
    captures: Sequence[Capture],
    measured_s: Sequence[float],
    *,
    scale_s: Sequence[float],
) -> HostCosts:
    """Fit the factors to measured times of the host; errors count relative to ``scale_s``."""
    from scipy.optimize import nnls

    terms = np.array([bare.terms(capture) for capture in captures])
    times, scale = np.array(measured_s), np.array(scale_s)
    # A weak pull keeps a factor near what it usually is where the steps do not tell.
    usual = np.array([1.6, 1.6, 1.6, 5e-6, 4e-6, 2e-4])
    pull = 0.02 * np.sqrt(len(times)) / usual
    matrix = np.vstack([terms / scale[:, None], np.diag(pull)])
    wanted = np.concatenate([times / scale, pull * usual])
    solution, _ = nnls(matrix, wanted)
    errors = (terms @ solution - times) / scale
    return HostCosts(
        dispatch_s=bare.dispatch_s,
        tensor_s=bare.tensor_s,
        recurrent_s=bare.recurrent_s,
        factors=dict(zip(_TERMS, map(float, solution), strict=True)),
        spread=float(np.sqrt((errors**2).mean())),
    )
