"""The loss of connectionist temporal classification (CTC), whose results' sizes depend on values.

A step along the sounds waits for the one before it. Nothing else does, so that lengths matter and
values do not: a capture takes every sound, and every text, to be as long as the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.steps.kernel import Kernel, Operand

CTC, CTC_BACKWARD = "_ctc_loss", "_ctc_loss_backward"
"""The operators' names."""
_MEAN, _SUM = 1, 2  # as PyTorch numbers them


def use_ctc_of_numbers(library: torch.library.Library) -> None:
    """Let the loss take lengths as numbers, too, as long as ``library`` lives.

    PyTorch makes a tensor of them in a way that a tensor without values does not survive.
    """
    library.impl("ctc_loss.IntList", _loss_of_numbers, "AutogradCPU")  # type: ignore[no-untyped-call]


def _loss_of_numbers(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    if log_probs.dim() == 2:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    losses: Tensor = torch.ops.aten._ctc_loss.default(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, torch.zeros((), dtype=losses.dtype), losses)
    if reduction == _MEAN:
        return (losses / torch.ones_like(losses).clamp_min(1)).mean()
    return losses.sum() if reduction == _SUM else losses


def is_ctc(func: Any) -> bool:
    """Whether a call is the loss itself, with lengths in a tensor or as numbers."""
    return func in (torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor)


def ctc_results(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *_: Any
) -> tuple[Tensor, Tensor]:
    """What the loss returns for tensors without values: one loss for each text, and log alpha."""
    steps, batch, _classes = log_probs.shape
    longest = _longest_text(targets, batch, target_lengths)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _longest_text(targets: Tensor, batch: int, lengths: Tensor | Sequence[int]) -> int:
    if targets.dim() > 1:
        return targets.shape[1]
    mean = -(-targets.shape[0] // max(batch, 1))  # the texts lie behind one another
    return mean if isinstance(lengths, Tensor) else max(mean, *lengths)


def ctc_kernel(log_probs: Operand, log_alpha: Operand) -> Kernel:
    """(log probabilities, texts): what the forward pass fills in is log alpha."""
    return Kernel("ctc_loss", (log_probs, _texts(log_alpha)), outputs=(log_alpha,))


def ctc_backward_kernel(log_probs: Operand, log_alpha: Operand) -> Kernel:
    """(log probabilities, texts, log alpha): as long again from the end, and the gradient."""
    args = (log_probs, _texts(log_alpha), log_alpha)
    return Kernel("ctc_loss_backward", args, outputs=(Operand(log_probs.dtype, log_probs.shape),))


def _texts(log_alpha: Operand) -> Operand:
    batch, _, states = log_alpha.shape
    return Operand("i64", (batch, states // 2))
