"""What a strategy may touch of the model it trains: its parameters and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from paceline.strategies.layout import FlatLayout, lay_out

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
        self._model = model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.parameters[0].device

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The model's buffers as they are now: some modules replace theirs in every step."""
        return list(self._model.buffers())

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
