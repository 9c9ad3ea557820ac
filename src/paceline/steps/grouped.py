"""Grouped products, as mixtures of experts run them: rows of one matrix go to several others.

How many rows each expert gets is a value, which a capture does not have. They are taken to be
shared evenly, as the losses that balance experts want it. CUDA has one kernel for all groups in
bf16 (on Hopper and Blackwell), which is counted as a batched product; in other dtypes PyTorch
multiplies group by group (aten/src/ATen/native/GroupedMMUtils.h).
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.steps.kernel import Kernel, Operand

GROUPED = "_grouped_mm"
"""The operator's name."""


def use_grouped_products(library: torch.library.Library) -> None:
    """Let fakes of any dtype be multiplied group by group, as long as ``library`` lives.

    PyTorch's own shape function takes bf16 alone, which is narrower than what CUDA's operator does.
    """
    library.impl(GROUPED, _product, "Meta")  # type: ignore[no-untyped-call]


def _product(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    rows, columns = left.shape[-2], right.shape[-1]
    if left.dim() == right.dim():
        num_groups = _num_groups(offs) if left.dim() == 2 else left.shape[0]
        shape: tuple[int, ...] = (num_groups, rows, columns)
    else:
        shape = (rows, columns)
    return left.new_empty(shape, dtype=out_dtype or left.dtype)


def _num_groups(offs: Tensor | None) -> int:
    if offs is None:
        raise ValueError("A grouped product of two matrices needs offs, where each group ends.")
    return offs.shape[0]


def grouped_kernels(left: Operand, right: Operand, made: Operand) -> tuple[Kernel, ...]:
    """What multiplies each group's share of ``left`` with its own of ``right``: kernels.

    The dimension that is divided among groups is the one that a matrix has where the other operand
    has a stack of matrices: rows, columns, or, of two matrices, the sum's length.
    """
    groups = next(each.shape[0] for each in (left, right, made) if len(each.shape) == 3)
    divided = _divided(left, right)
    groups = max(min(groups, divided), 1)
    share = -(-divided // groups)
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if len(left.shape) == len(right.shape) == 2:
        depth = share
    elif len(left.shape) == 2:
        rows = share
    elif len(right.shape) == 2:
        columns = share
    one = _matrix(left, rows, depth), _matrix(right, depth, columns)
    if left.dtype == "bf16" and right.dtype == "bf16":
        stacks = tuple(_stack(each, groups) for each in one)
        return (Kernel("bmm", stacks, outputs=(Operand(made.dtype, (groups, rows, columns)),)),)
    product = Kernel("mm", one, outputs=(Operand(made.dtype, (rows, columns)),))
    return (product,) * groups


def _divided(left: Operand, right: Operand) -> int:
    """The length that is divided among groups; 1 where both have a matrix for each."""
    if len(left.shape) == 3 and len(right.shape) == 3:
        return left.shape[0]
    return (
        left.shape[-2] if len(right.shape) == 3 else right.shape[-1 if len(left.shape) == 3 else -2]
    )


def _matrix(of: Operand, rows: int, columns: int) -> Operand:
    """A matrix that lies in memory as an operand's last two dimensions do."""
    is_turned = of.strides is not None and of.strides[-1] != 1
    return Operand(of.dtype, (rows, columns), (1, rows) if is_turned else None)


def _stack(of: Operand, groups: int) -> Operand:
    strides = None if of.strides is None else (of.shape[0] * of.shape[1], *of.strides)
    return Operand(of.dtype, (groups, *of.shape), strides)
