"""The same step with another batch size."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from paceline.steps.step import Step
from paceline.steps.tensors import map_tensors


def resized(step: Step, batch: int) -> Step:
    """The step with ``batch`` samples: tensors whose first size is the batch's are resized."""
    if batch == step.batch:
        return step
    own = step.batch

    def with_batch(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != own:
            return tensor
        # Shapes alone matter to a capture, so nothing is copied.
        size = (batch, *tensor.shape[1:])
        return torch.empty(size, dtype=tensor.dtype, device="meta")

    resized_inputs = map_tensors(step.inputs, with_batch)
    changed = replace(
        step,
        inputs=resized_inputs,
        targets=map_tensors(step.targets, with_batch),
        num_samples=None if step.num_samples is None else batch,
    )
    if changed.batch != batch:
        raise ValueError(
            f"{step.title} has {own} samples per batch, but no input tensor of that length: its "
            "batch size cannot be varied."
        )
    return changed
