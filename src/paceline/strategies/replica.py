"""What a strategy may touch of the model it trains: its parameters and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from paceline.strategies.layout import FlatLayout, lay_out
from paceline.teams import Pending, Team

BufferMode = Literal["mean", "keep", "broadcast"]


class Replica:
    """One worker's copy of the model.

    Holds each trainable parameter once, however often the model uses it; frozen parameters are
    equal everywhere and never travel.
    """

    def __init__(self, model: nn.Module, *, buffers: BufferMode) -> None:
        self.buffer_mode: BufferMode = buffers
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("the model has no parameter that requires a gradient")
        self.buffers = list(model.buffers())
        self.frozen = [p for p in model.parameters() if not p.requires_grad]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.parameters[0].device

    def float_buffers(self) -> list[torch.Tensor]:
        """The buffers that can be averaged, such as batch norm's statistics."""
        return [buffer for buffer in self.buffers if buffer.is_floating_point()]

    def other_buffers(self) -> list[torch.Tensor]:
        """The buffers that cannot be averaged, such as counters."""
        return [buffer for buffer in self.buffers if not buffer.is_floating_point()]

    def buffer_layouts(self) -> list[FlatLayout]:
        """Layouts for the buffers that travel."""
        return [] if self.buffer_mode == "keep" else lay_out(self.float_buffers())

    def fragments(self, count: int) -> list[list[FlatLayout]]:
        """Layouts for ``count`` parts of the parameters of about equal size, in model order."""
        if count > len(self.parameters):
            raise ValueError(
                f"{count} fragments are more than the model's {len(self.parameters)} trainable "
                "parameters; ask for fewer"
            )
        return [lay_out(part) for part in _split_evenly(self.parameters, count)]


def start_buffers(replica: Replica, team: Team) -> list[tuple[Pending, FlatLayout, torch.Tensor]]:
    """Begin to make the floating-point buffers of a team's members equal.

    Each result is there when its pending is done; it must then be unpacked.
    """
    started = []
    for layout in replica.buffer_layouts():
        flat = layout.pack()
        is_mean = replica.buffer_mode == "mean"
        pending = team.all_reduce(flat, "mean") if is_mean else team.broadcast(flat, 0)
        started.append((pending, layout, flat))
    return started


def settle_buffers(replica: Replica, team: Team) -> None:
    """Make all buffers of a team's members equal: counters too, which no average can."""
    if replica.buffer_mode == "keep" or team.size == 1:
        return
    for pending, layout, flat in start_buffers(replica, team):
        pending.wait()
        layout.unpack(flat)
    for pending in [team.broadcast(buffer, 0) for buffer in replica.other_buffers()]:
        pending.wait()


def _split_evenly(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """Cut a list into ``count`` runs, none empty, each about as large as the others."""
    total = sum(p.numel() for p in parameters)
    parts: list[list[nn.Parameter]] = [[]]
    seen = 0
    for index, parameter in enumerate(parameters):
        remaining = len(parameters) - index
        missing_parts = count - len(parts)
        is_full = seen * count >= total * len(parts)
        if parts[-1] and missing_parts and (is_full or remaining == missing_parts):
            parts.append([])
        parts[-1].append(parameter)
        seen += parameter.numel()
    return parts
