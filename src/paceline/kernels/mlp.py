"""A small ensemble of multi-layer perceptrons: how far a kernel is from its roofline.

The target is log(time / roofline), so that the networks learn efficiency and not size. Members
differ in their first weights and in the fifth of the data that each does not see; how far they
disagree tells how little is known, and the error of each on its unseen part tells how well all
of them do.

Of 7,272 kernels of 28 networks that were left out on an H200, the errors (root mean square of the
logarithm) were about three times the members' disagreement where that is 0.05 to 0.5. Where they
agree, errors were a quarter of those on unseen kernels: random kernels are harder than those of
networks.

A network learns medians. A step is a sum, in which the rare kernel counts that takes ten times as
long as its neighbours. How much longer the mean is grows with the doubt s: if the logarithm's error
were normal by exp(s^2 / 2), about 1 + s^2 / 2. The factor of s^2, at most 1/2, is learned on
kernels that a member has not seen, and that networks run: random ones are odder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
NUM_MEMBERS = 5
_HIDDEN = 128
_BATCH = 512
_PER_SPREAD = 3.0
_PER_RESIDUAL = 0.25
_MOST_SKEWED = 0.5  # of doubts: beyond that they tell little
_MOST_SKEW = 0.5  # as of a normal error
_LONGEST = 3.0  # of errors, as a logarithm: a kernel that takes longer by more is an accident


class _Pace(NamedTuple):
    """How fast weights change, and how fast they are forgotten."""

    rate: float
    decay: float


_LEARNING = _Pace(rate=8e-3, decay=0.1)
_ADAPTING = _Pace(rate=2e-3, decay=0.0)  # what was learned elsewhere shall not fade


class Answers(NamedTuple):
    """Of an ensemble, one for every kernel."""

    logs: Floats
    """log(time / roofline), the median."""
    unsure: Floats
    """The uncertainty of that, one standard deviation."""
    longer: Doubles
    """The mean time over the median."""


@dataclass(frozen=True)
class Ensemble:
    """Trained networks of one kernel family."""

    ops: tuple[str, ...]
    """The operators it has seen; each is an input of its own."""
    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    """Of every feature: what normalises it, and the range in which it was measured."""
    weights: tuple[Tensor, ...]
    """Of each layer, for all members: (members, inputs, outputs)."""
    biases: tuple[Tensor, ...]
    residual: float
    """Root mean square of log(predicted / measured) on kernels that a member has not seen."""
    skew: float = 0.0
    """How much longer kernels take on average than predicted, for each squared doubt."""

    def check(self) -> None:
        """Refuse, with a ValueError, what cannot be: parts that do not fit, values not finite."""
        num_features = len(self.mean) if self.mean.dim() == 1 else -1
        per_feature = (self.mean, self.scale, self.low, self.high)
        if any(each.shape != (num_features,) for each in per_feature):
            raise ValueError("its features' ranges do not fit together")
        if not all(isinstance(op, str) for op in self.ops):
            raise ValueError("its operators are no names")
        sizes = [num_features + len(self.ops), *(int(each.shape[-1]) for each in self.biases)]
        shapes = [(NUM_MEMBERS, before, after) for before, after in pairwise(sizes)]
        if sizes[-1] != 1 or [tuple(each.shape) for each in self.weights] != shapes:
            raise ValueError("its layers do not fit together")
        if any(each.shape != (NUM_MEMBERS, 1, each.shape[-1]) for each in self.biases):
            raise ValueError("its layers do not fit together")
        values = (*per_feature, *self.weights, *self.biases)
        if not all(each.dtype == torch.float32 and bool(each.isfinite().all()) for each in values):
            raise ValueError("its values are not finite numbers in fp32")
        if not bool((self.scale > 0).all()) or not 0 <= self.residual < math.inf:
            raise ValueError("its scales are not above 0")
        if not 0 <= self.skew <= _MOST_SKEW:
            raise ValueError(f"its skew is not from 0 to {_MOST_SKEW}")

    def in_float64(self) -> Ensemble:
        """The same networks, whose answers do not depend on what else is asked with a kernel."""
        return replace(
            self,
            mean=self.mean.double(),
            scale=self.scale.double(),
            low=self.low.double(),
            high=self.high.double(),
            weights=tuple(each.double() for each in self.weights),
            biases=tuple(each.double() for each in self.biases),
        )

    def predict(self, features: Floats | Doubles, ops: list[str]) -> Answers:
        """What the networks say of every row."""
        raw = torch.from_numpy(features)
        if raw.shape[1] != len(self.mean):
            raise ValueError(
                f"The fitted model knows {len(self.mean)} features of {ops[0]}, which has "
                f"{raw.shape[1]}; run `paceline fit` again."
            )
        inputs = torch.cat([self._normalised(raw), self._labels(ops)], 1)
        with torch.no_grad():
            each = _forward(inputs, self.weights, self.biases)
        # What never varied (how many outputs a norm has) has no scale; its own unit must do.
        scale = torch.where(self.high > self.low, self.scale, 1.0)
        beyond = torch.relu(torch.maximum(self.low - raw, raw - self.high)) / scale
        doubt = 1.0 + beyond.amax(1)
        unsure = _doubt(each, self.residual)
        # Farther away more is unknown, but nothing makes it slower on average.
        longer = 1.0 + self.skew * unsure.clamp(max=_MOST_SKEWED).double() ** 2
        return Answers(each.mean(0).numpy(), (unsure * doubt).numpy(), longer.numpy())

    def _normalised(self, features: Tensor) -> Tensor:
        # Beyond what was measured the nearest measured value is a better guide than a
        # network's extrapolation: efficiency saturates.
        inside = torch.minimum(torch.maximum(features, self.low), self.high)
        return (inside - self.mean) / self.scale

    def _labels(self, ops: list[str]) -> Tensor:
        labels = torch.zeros(len(ops), len(self.ops))
        places = {op: index for index, op in enumerate(self.ops)}
        for row, op in enumerate(ops):
            if op in places:
                labels[row, places[op]] = 1.0
        return labels


def train_ensemble(
    features: Floats,
    ops: list[str],
    targets: Floats,
    importance: Floats,
    typical: Bools | None = None,
    *,
    num_steps: int,
    seed: int,
    progress: Callable[[int], None],
) -> Ensemble:
    """Fit ``targets`` (log of time over roofline); ``progress`` is told of every step done.

    The rows that are ``typical`` tell the skew; without any it is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    raw = torch.from_numpy(features)
    vocabulary = tuple(sorted(set(ops)))
    mean, scale = raw.mean(0), raw.std(0).clamp(min=1e-2)
    blank = Ensemble(
        vocabulary, mean, scale, raw.amin(0), raw.amax(0), weights=(), biases=(), residual=0.0
    )
    inputs = torch.cat([blank._normalised(raw), blank._labels(ops)], 1)
    weights, biases = _first_layers(inputs.shape[1], float(targets.mean()), generator)
    data = _Data(inputs, torch.from_numpy(targets), torch.from_numpy(importance), generator)
    _descend(data, weights, biases, len(vocabulary), num_steps, generator, progress, _LEARNING)
    return Ensemble(
        vocabulary,
        mean,
        scale,
        blank.low,
        blank.high,
        tuple(each.detach() for each in weights),
        tuple(each.detach() for each in biases),
        *data.unseen(weights, biases, typical),
    )


def adapt_ensemble(
    start: Ensemble,
    features: Floats,
    ops: list[str],
    targets: Floats,
    importance: Floats,
    typical: Bools | None = None,
    *,
    num_steps: int,
    seed: int,
    progress: Callable[[int], None],
) -> Ensemble:
    """Fit few ``targets``, starting from what was learned on another device.

    First all answers are moved by what they are off on average; then training goes on, slowly.
    """
    generator = torch.Generator().manual_seed(seed)
    raw, wanted = torch.from_numpy(features), torch.from_numpy(targets)
    own = replace(
        start,
        low=torch.minimum(start.low, raw.amin(0)),
        high=torch.maximum(start.high, raw.amax(0)),
    )
    inputs = torch.cat([own._normalised(raw), own._labels(ops)], 1)
    weights = [each.clone() for each in start.weights]
    biases = [each.clone() for each in start.biases]
    data = _Data(inputs, wanted, torch.from_numpy(importance), generator)
    missing = wanted - _forward(inputs, weights, biases)
    for member in range(NUM_MEMBERS):
        biases[-1][member] += missing[member, data.seen(member)].mean()
    for each in (*weights, *biases):
        each.requires_grad_()
    _descend(data, weights, biases, len(own.ops), num_steps, generator, progress, _ADAPTING)
    unseen = data.unseen(weights, biases, typical)
    return replace(
        own,
        weights=tuple(each.detach() for each in weights),
        biases=tuple(each.detach() for each in biases),
        residual=unseen.residual,
        skew=unseen.skew,
    )


class _Unseen(NamedTuple):
    """An ensemble's residual and skew."""

    residual: float
    skew: float


class _Data:
    """The kernels, and which member may see which."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, importance: Tensor, generator: torch.Generator
    ) -> None:
        self.inputs, self.targets, self.importance = inputs, targets, importance
        self.unseen_by = torch.randint(NUM_MEMBERS, (len(inputs),), generator=generator)

    def seen(self, member: int) -> Tensor:
        rows = torch.nonzero(self.unseen_by != member).flatten()
        return rows if len(rows) else torch.arange(len(self.inputs))

    def unseen(self, weights: list[Tensor], biases: list[Tensor], typical: Bools | None) -> _Unseen:
        """What kernels show that a member has not seen."""
        with torch.no_grad():
            each = _forward(self.inputs, weights, biases)
        own = each[self.unseen_by, torch.arange(len(self.targets))]
        errors = self.targets - own
        residual = float((errors**2).mean().sqrt())
        if typical is None:
            return _Unseen(residual, 0.0)
        unsure = _doubt(each, residual)
        near = torch.from_numpy(typical) & (unsure < _MOST_SKEWED)
        return _Unseen(residual, self._skew(errors, unsure, near))

    def _skew(self, errors: Tensor, unsure: Tensor, near: Tensor) -> float:
        longer = torch.expm1(errors[near].clamp(max=_LONGEST)) * self.importance[near]
        squares = unsure[near] ** 2 * self.importance[near]
        if not len(longer):
            return 0.0
        return min(max(float(longer.sum() / squares.sum()), 0.0), _MOST_SKEW)


def _doubt(each: Tensor, residual: float) -> Tensor:
    """From the answers of all members: (members, rows)."""
    return torch.hypot(_PER_SPREAD * each.std(0), torch.tensor(_PER_RESIDUAL * residual))


def _forward(
    inputs: Tensor,
    weights: tuple[Tensor, ...] | list[Tensor],
    biases: tuple[Tensor, ...] | list[Tensor],
) -> Tensor:
    """(members, rows) from (rows, features), or from (members, rows, features)."""
    hidden = inputs.expand(NUM_MEMBERS, *inputs.shape[-2:])
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = torch.baddbmm(bias, hidden, weight)
        if layer < len(weights) - 1:
            hidden = functional.silu(hidden)
    return hidden.squeeze(-1)


def _first_layers(
    num_inputs: int, mean_target: float, generator: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    sizes = (num_inputs, _HIDDEN, _HIDDEN, 1)
    weights = [
        (
            torch.randn(NUM_MEMBERS, before, after, generator=generator) * math.sqrt(1.5 / before)
        ).requires_grad_()
        for before, after in pairwise(sizes)
    ]
    biases = [torch.zeros(NUM_MEMBERS, 1, after).requires_grad_() for after in sizes[1:]]
    with torch.no_grad():
        weights[-1] *= 0.1
        biases[-1] += mean_target
    return weights, biases


def _descend(
    data: _Data,
    weights: list[Tensor],
    biases: list[Tensor],
    num_labels: int,
    num_steps: int,
    generator: torch.Generator,
    progress: Callable[[int], None],
    pace: _Pace,
) -> None:
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": pace.decay}, {"params": biases, "weight_decay": 0.0}],
        lr=pace.rate,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, pace.rate, total_steps=num_steps, pct_start=0.1, final_div_factor=1e3
    )
    seen = [data.seen(member) for member in range(NUM_MEMBERS)]
    for _ in range(num_steps):
        rows = torch.stack(
            [own[torch.randint(len(own), (_BATCH,), generator=generator)] for own in seen]
        )
        batch = data.inputs[rows]
        # Now and then the operator's name is hidden, so that an unseen one gets a fair answer.
        hidden = torch.rand(NUM_MEMBERS, _BATCH, 1, generator=generator) < 0.02
        batch[..., -num_labels:] *= (~hidden).float()
        error = _forward(batch, weights, biases) - data.targets[rows]
        loss = (
            (
                functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=0.3)
                * data.importance[rows]
            )
            .mean(1)
            .sum()
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        progress(1)
