"""Recurrent layers as a GPU runs them: all layers and all steps of a sequence in one cuDNN call.

A CPU build has no cuDNN, but knows the shapes of its operators. Forward is `aten::_cudnn_rnn`,
backward is `aten::_cudnn_rnn_backward`; what PyTorch does not know of them is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the kinds of layers."""
AUTOCAST = torch.float16
"""What autocast makes of cuDNN's recurrent layers, also where it makes bfloat16 of all others
(aten/src/ATen/cudnn/AutocastRNN.cpp)."""
# What cuDNN keeps of each step and layer for the backward pass, in states of the layer: read off
# an H200 (cuDNN 9), exact for 102 sizes but for a bit per element where there is dropout.
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
# An LSTM of so few values is run by another algorithm (use_rnn_persist_small_h in
# aten/src/ATen/native/cudnn/RNN.cpp). Six such layers, in two precisions, kept one state more.
_SMALL_LSTM = 192


def kept_states(mode: int, width: int, projected: int, num_layers: int) -> int:
    """Values kept for the backward pass per step and direction; layers' outputs between them too.

    Args:
        mode: cuDNN's number of the kind of layers.
        width: Of a state.
        projected: What a state is projected to; 0 if it is not.
        num_layers: The number of layers.
    """
    states = width * (_KEPT[mode] * num_layers + num_layers - 1)
    if projected:
        return states + num_layers * (width + projected)
    if mode == MODES["lstm"] and width <= _SMALL_LSTM:
        return states + num_layers * width
    return states


def use_cudnn_layers(library: torch.library.Library) -> None:
    """Let recurrent layers dispatch to cuDNN's operators, as long as ``library`` lives."""
    for name in MODES:
        library.impl(f"{name}.input", _layers(name), "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl(f"{name}.data", _packed_layers(name), "AutogradCPU")  # type: ignore[no-untyped-call]
    library.impl("_cudnn_rnn", _results, "Meta")  # type: ignore[no-untyped-call]
    library.impl("_cudnn_rnn_backward", _gradients, "Meta")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Settings:
    mode: int
    width: int
    projected: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def arguments(self) -> tuple[Any, ...]:
        """As both of cuDNN's operators take them: without packed sequences or dropout's state."""
        kind = (self.mode, self.width, self.projected, self.num_layers, self.batch_first)
        return (*kind, self.dropout, self.train, self.bidirectional, [], None)

    def kept_states(self) -> int:
        """What is kept per step and direction."""
        if not self.train:
            return 0
        return kept_states(self.mode, self.width, self.projected, self.num_layers)


def _layers(name: str) -> Callable[..., Any]:
    def run(
        inputs: Tensor,
        state: Any,
        weights: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        hidden, cell = state if name == "lstm" else (state, None)
        if torch.is_autocast_enabled("cpu"):
            # As autocast does for cuDNN: once for the whole layer, not step by step.
            inputs, hidden = inputs.to(AUTOCAST), hidden.to(AUTOCAST)
            cell = None if cell is None else cell.to(AUTOCAST)
            weights = [each.to(AUTOCAST) for each in weights]
        width = (hidden if cell is None else cell).shape[-1]
        settings = _Settings(
            mode=MODES[name],
            width=width,
            projected=hidden.shape[-1] if hidden.shape[-1] != width else 0,
            num_layers=num_layers,
            batch_first=batch_first,
            dropout=dropout,
            train=train,
            bidirectional=bidirectional,
        )
        with torch.autocast("cpu", enabled=False):
            made = _CudnnLayers.apply(settings, inputs, hidden, cell, *weights)  # type: ignore[no-untyped-call]
        return made if name == "lstm" else made[:2]

    return run


def _packed_layers(name: str) -> Callable[..., Any]:
    """The same for a packed sequence, whose samples all have as many steps (packed.py)."""
    layers = _layers(name)

    def run(rows: Tensor, batch_sizes: Tensor, *others: Any) -> Any:
        steps = rows.view(batch_sizes.shape[0], -1, rows.shape[-1])
        output, *last = layers(steps, *others, batch_first=False)
        return output.flatten(0, 1), *last

    return run


class _CudnnLayers(torch.autograd.Function):
    """cuDNN's layers with what they keep for the backward pass: PyTorch's shapes leave it out."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: _Settings,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.settings = settings
        stride = len(weights) // (settings.num_layers * settings.directions)
        output, last, last_cell, *_ = torch.ops.aten._cudnn_rnn.default(
            inputs, list(weights), stride, None, hidden, cell, *settings.arguments()
        )
        steps = inputs.shape[0] * inputs.shape[1] * settings.directions
        kept = inputs.new_empty(steps * settings.kept_states())
        ctx.save_for_backward(inputs, hidden, cell, output, kept, *weights)
        return output, last, last_cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        inputs, hidden, cell, output, kept, *weights = ctx.saved_tensors
        of_output, *of_last = gradients
        if of_output is not None and ctx.settings.batch_first:
            of_output = of_output.transpose(0, 1).contiguous().transpose(0, 1)
        elif of_output is not None:
            of_output = of_output.contiguous()
        wanted = ctx.needs_input_grad
        mask = [wanted[1], wanted[2], cell is not None and wanted[3], any(wanted[4:])]
        stride = len(weights) // (ctx.settings.num_layers * ctx.settings.directions)
        flat = inputs.new_empty(0)
        made = torch.ops.aten._cudnn_rnn_backward.default(
            inputs,
            weights,
            stride,
            flat,
            hidden,
            cell,
            output,
            of_output,
            *of_last[: 2 if cell is not None else 1],
            *(() if cell is not None else (None,)),
            *ctx.settings.arguments(),
            kept,
            mask,
        )
        of_weights = made[3] or [None] * len(weights)
        return (None, *made[:3], *of_weights)


def _results(
    inputs: Tensor,
    weights: Sequence[Tensor],
    stride: int,
    flat: Tensor | None,
    hidden: Tensor,
    cell: Tensor | None,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch_first, bidirectional = others[4], others[7]
    directions = 2 if bidirectional else 1
    return (
        _steps_first(inputs, directions * hidden.shape[-1], batch_first=batch_first),
        torch.empty_like(hidden),
        hidden.new_empty(0) if cell is None else torch.empty_like(cell),
        inputs.new_empty(0, dtype=torch.uint8),  # what is kept is allocated by the caller
        inputs.new_empty(0) if flat is None else flat,
    )


def _steps_first(inputs: Tensor, width: int, *, batch_first: bool) -> Tensor:
    """What cuDNN writes: one step after another, also where the batch comes first.

    PyTorch turns it into a view (aten/src/ATen/native/cudnn/RNN.cpp), which many operators copy.
    """
    first, second = inputs.shape[:2]
    if batch_first:
        return inputs.new_empty((second, first, width)).transpose(0, 1)
    return inputs.new_empty((first, second, width))


def _gradients(
    inputs: Tensor,
    weights: Sequence[Tensor],
    stride: int,
    flat: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    *others: Any,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
    wants_input, wants_hidden, wants_cell, wants_weights = others[-1]
    # Last come batch first, dropout, training, directions, batch sizes, dropout's state, what was
    # kept, and what is wanted.
    batch_first = others[-8]
    given = inputs.shape[-1]
    return (
        _steps_first(inputs, given, batch_first=batch_first) if wants_input else None,
        torch.empty_like(hidden) if wants_hidden else None,
        torch.empty_like(cell) if wants_cell and cell is not None else None,
        [torch.empty_like(each) for each in weights] if wants_weights else [],
    )
