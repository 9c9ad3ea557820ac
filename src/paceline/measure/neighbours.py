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
from paceline.measure import neighbour_rare as rare
from paceline.measure import neighbour_resampling as resampling
from paceline.measure import usual_convolutions, usual_modules, usual_norms
from paceline.measure.neighbour_recurrent import recurrent, usual_recurrent
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
    (indexing.small_table, 0.5),
    (indexing.gathered_rows, 2),
    (indexing.picked_elements, 1),
    (recurrent, 2.5),
    (modules.optimizer, 2),
    (usual_convolutions.usual_signal, 9),
    (usual_convolutions.usual_volume, 5),
    (usual_convolutions.usual_enlarging, 4),
    (usual_convolutions.usual_image, 6),
    (usual_convolutions.short_signal, 1),
    (usual_recurrent, 1.5),
    (usual_modules.broadcast, 3),
    (usual_modules.flags, 0.7),
    (usual_modules.moved, 2),
    (usual_modules.joined_parts, 1.5),
    (usual_modules.summed, 2),
    (usual_modules.loss, 1),
    (usual_modules.norm_of_rows, 1.5),
    (usual_norms.usual_softmax, 2),
    (usual_norms.usual_norm, 2),
    (usual_modules.nodes_and_edges, 2),
    (usual_modules.attention_between, 2.5),
    (usual_modules.usual_linear, 3),
    (usual_modules.enlarged, 1),
    (usual_modules.usual_pooling, 1),
    (rare.rare_sampling, 1),
    (rare.rare_activation, 1),
    (rare.rare_loss, 0.3),
    (rare.rare_text_loss, 0.2),
    (rare.rare_reduction, 1),
    (rare.rare_indexing, 0.7),
    (rare.rare_order, 1),
)
