"""Random kernels around those that networks use, so that a fit covers networks it never saw.

Every neighbour is a small module, run forward and backward on fake tensors: its kernels then have
exactly the arguments that PyTorch would give them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.cluster.device import Precision
from paceline.measure import neighbour_convolutions as convolutions
from paceline.measure import neighbour_modules as modules
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import recording

Case = Callable[[random.Random], None]


@dataclass(frozen=True)
class Neighbours:
    """What random modules ran, and how many of them did not run."""

    kernels: list[Kernel] = field(default_factory=list)
    tried: Counter[str] = field(default_factory=Counter)
    """Modules by kind."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Those of them whose sizes did not fit together, such as a window larger than its image."""


def draw_neighbours(rng: random.Random, precision: Precision, num_cases: int) -> Neighbours:
    """The kernels of ``num_cases`` random small modules in one precision."""
    cases, weights = zip(*_CASES, strict=True)
    found = Neighbours()
    with recording(precision) as calls:
        for case in rng.choices(cases, weights, k=num_cases):
            calls.clear()
            found.tried[case.__name__] += 1
            try:
                case(rng)
            except RuntimeError:  # what PyTorch raises for sizes
                found.dropped[case.__name__] += 1
                continue
            found.kernels.extend(kernel for call in calls for kernel in call.kernels)
    return found


_CASES: tuple[tuple[Case, float], ...] = (
    (convolutions.usual_convolution, 24),
    (convolutions.convolution, 12),
    (convolutions.other_convolution, 1),
    (modules.linear, 9),
    (modules.batched_product, 2),
    (modules.batch_norm, 3),
    (modules.layer_norm, 2),
    (modules.group_norm, 0.5),
    (modules.pooling, 2.5),
    (modules.attention, 5),
    (modules.activation, 3),
    (modules.binary, 2),
    (modules.joined, 1),
    (modules.copy, 1),
    (modules.reduction, 3),
    (modules.softmax, 2),
    (modules.embedding, 1.5),
    (modules.optimizer, 2),
)
