"""Random kernels around those that networks use, so that a fit covers networks it never saw.

Every neighbour is a small module, run forward and backward on fake tensors: its kernels then have
exactly the arguments that PyTorch would give them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from paceline.cluster.device import Precision
from paceline.kernels import neighbour_convolutions as convolutions
from paceline.kernels import neighbour_modules as modules
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import recording

Case = Callable[[random.Random], None]


def neighbour_kernels(rng: random.Random, precision: Precision, num_cases: int) -> Iterator[Kernel]:
    """The kernels of ``num_cases`` random small modules in one precision."""
    cases, weights = zip(*_CASES, strict=True)
    with recording(precision) as calls:
        for case in rng.choices(cases, weights, k=num_cases):
            calls.clear()
            try:
                case(rng)
            except (RuntimeError, ValueError, MemoryError):
                continue  # sizes that do not fit together, such as a window larger than its image
            for call in calls:
                yield from call.kernels


_CASES: tuple[tuple[Case, float], ...] = (
    (convolutions.usual_convolution, 24),
    (convolutions.convolution, 12),
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
