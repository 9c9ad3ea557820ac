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
from paceline.measure import neighbour_indexing as indexing
from paceline.measure import neighbour_modules as modules
from paceline.measure import neighbour_resampling as resampling
from paceline.measure.neighbour_recurrent import recurrent
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
    (convolutions.signal_convolution, 4),
    (convolutions.volume_convolution, 3),
    (convolutions.dilated_convolution, 2),
    (convolutions.transposed_convolution, 2),
    (modules.linear, 9),
    (modules.batched_product, 2),
    (modules.batch_norm, 3),
    (modules.layer_norm, 2),
    (modules.wide_layer_norm, 0.5),
    (modules.group_norm, 2),
    (modules.pooling, 2.5),
    (resampling.resampling, 2),
    (resampling.pooling_of_signals, 1),
    (modules.attention, 5),
    (modules.biased_attention, 1),
    (modules.activation, 3),
    (modules.binary, 2),
    (modules.joined, 1),
    (modules.copy, 1),
    (modules.reduction, 3),
    (modules.softmax, 2),
    (modules.long_softmax, 1),
    (modules.embedding, 1.5),
    (indexing.large_table, 1),
    (indexing.gathered_rows, 2),
    (indexing.picked_elements, 1),
    (recurrent, 2.5),
    (modules.optimizer, 2),
)
