"""What workers can ask of a network together, and which library carries it."""

from __future__ import annotations

from typing import Literal

CollectiveKind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "point_to_point"
]
"""A collective, or a message between two workers."""
Library = Literal["nccl", "gloo"]
"""The communication library behind torch.distributed."""
