"""Whether a saved state fits what is attached, and what of it holds on other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.strategies.layout import FlatLayout


def no_errors(wire: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Of a narrow wire's state: all but what nodes agree on, as it is at first."""
    return {name: torch.zeros_like(flat) for name, flat in wire.items() if name != "agreed"}


def check_sizes(what: str, saved: Sequence[torch.Tensor], layouts: Sequence[FlatLayout]) -> None:
    """Refuse values of another model. Without any, there is nothing to compare."""
    sizes = [flat.numel() for flat in saved]
    own = [layout.numel for layout in layouts]
    if sizes and sizes != own:
        raise ValueError(
            f"the checkpoint is of another model: its {what} hold {sum(sizes)} values, and "
            f"those of the attached model {sum(own)}"
        )


def count(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
