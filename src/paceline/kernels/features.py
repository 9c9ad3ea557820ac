"""What a family's network sees of a kernel: sizes as logarithms, layout, alignment, dtype.

Nothing here depends on the device but the number of its multiprocessors, which decides how evenly
a product's tiles fall on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.kernels.family import FamilyName, bytes_of, flop_of, packet_of
from paceline.kernels.product_features import (
    Features,
    alignment,
    attention_features,
    convolution_features,
    log_of,
    product_features,
    recurrent_features,
)
from paceline.steps.kernel import DTYPE_BYTES, Kernel, Operand


def features_of(kernels: Sequence[Kernel], family: FamilyName) -> npt.NDArray[np.float32]:
    """One row for each kernel, all of one family; without the operator's name."""
    describe = _FAMILY_FEATURES[family]
    rows = [_common(kernel) + describe(kernel) for kernel in kernels]
    return np.asarray(rows, dtype=np.float32).reshape(len(kernels), -1)


def _common(kernel: Kernel) -> Features:
    flop, num_bytes = flop_of(kernel), bytes_of(kernel)
    dtype = kernel.operands[0].dtype if kernel.operands else "f32"
    written = sum(each.numel for each in kernel.outputs)
    return [
        log_of(flop),
        log_of(num_bytes),
        log_of(flop / num_bytes),
        log_of(written),
        float(dtype == "f32"),
        float(dtype == "bf16"),
        float(dtype == "f16"),
        float(kernel.math == "tf32"),
    ]


def _batch_norm(kernel: Kernel) -> Features:
    image = kernel.operands[0]
    spatial = math.prod(image.shape[2:])
    return [
        log_of(image.shape[0]),
        log_of(image.shape[1]),
        log_of(spatial),
        log_of(image.shape[0] * spatial),
        float(image.is_channels_last),
        float(kernel.args[-1]),
        float(sum(each.strides is not None for each in kernel.operands)),
        *alignment(image.shape[1]),
        *alignment(spatial),
    ]


def _layer_norm(kernel: Kernel) -> Features:
    operand = max(kernel.operands, key=lambda each: each.numel)
    columns = _normed_together(kernel, operand)
    rows = max(operand.numel // max(columns, 1), 1)
    return [
        log_of(rows),
        log_of(columns),
        *alignment(columns),
        float(operand.is_channels_last),
        float(operand.strides is not None),
        float(len(kernel.outputs)),
        float(sum(each.strides is not None for each in (*kernel.operands, *kernel.outputs))),
        float(DTYPE_BYTES[kernel.outputs[0].dtype]) if kernel.outputs else 0.0,
    ]


def _normed_together(kernel: Kernel, operand: Operand) -> int:
    """Elements that share one norm."""
    if kernel.op.startswith("_weight_norm"):
        last = kernel.args[-1]  # the dimension that keeps norms of its own; PyTorch omits 0
        return operand.numel // operand.shape[last if isinstance(last, int) else 0]
    if kernel.op.startswith("native_group_norm"):
        # (..., samples, channels, positions, groups), then an epsilon or what is wanted
        channels, positions, groups = kernel.args[-4:-1]
        return int(channels // groups * positions)
    sizes = next((each for each in kernel.args if _is_sizes(each)), None)
    return math.prod(sizes) if sizes else operand.shape[-1]


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and type(value[0]) is int


def _pooling(kernel: Kernel) -> Features:
    image = kernel.operands[0]
    output = kernel.outputs[0]
    sizes = [each for each in kernel.args if _is_sizes(each)]
    window = sizes[0] if sizes else (1,)
    step = sizes[1] if len(sizes) > 1 else window
    return [
        log_of(image.shape[0] * image.shape[1]),
        log_of(math.prod(image.shape[2:])),
        log_of(math.prod(output.shape[2:])),
        log_of(image.shape[1]),
        log_of(math.prod(window)),
        log_of(math.prod(step)),
        float(image.is_channels_last),
        float(any(each.is_channels_last for each in kernel.operands)),
    ]


def _pointwise(kernel: Kernel) -> Features:
    operands, outputs = kernel.operands, kernel.outputs
    largest = max((*operands, *outputs), key=lambda each: each.numel, default=Operand("f32", ()))
    written = outputs[0] if outputs else largest
    read_bytes = sum(each.num_bytes for each in operands)
    # Threads read vectors of elements only where every operand lies as the output does.
    alike = [each for each in operands if each.shape == written.shape]
    mismatched = sum(each.strides != written.strides for each in alike)
    return [
        log_of(largest.numel),
        log_of(read_bytes),
        log_of(sum(each.num_bytes for each in outputs)),
        float(len(operands)),
        float(len(alike)),
        float(mismatched),
        float(len(operands) - len(alike)),
        float(sum(each.strides is not None for each in operands)),
        float(any(each.strides is not None and 0 in each.strides for each in operands)),
        float(written.is_channels_last),
        log_of(largest.shape[-1] if largest.shape else 1),
        log_of(_fastest_extent(largest)),
        float(len(largest.shape)),
        float(DTYPE_BYTES[written.dtype]),
        float(DTYPE_BYTES[operands[0].dtype]) if operands else 0.0,
        float(written.numel % 4 == 0),
        *_walk(kernel, written),
        *_joining(kernel, written),
    ]


def _walk(kernel: Kernel, written: Operand) -> Features:
    """How PyTorch's iterator goes through the operands: dimensions that are left when neighbours
    are merged, and how each operand lies along the innermost one.

    Operands that lie alike in one dimension are read in vectors; others need an index each.
    """
    ways = [each for each in map(partial(_way, written), kernel.operands) if each is not None]
    own = _way(written, written)
    assert own is not None
    order = sorted(
        (dim for dim, size in enumerate(written.shape) if size > 1), key=lambda dim: own[dim]
    )
    merged: list[tuple[int, tuple[int, ...]]] = []  # size, and the stride of each
    for dim in order:
        size, steps = written.shape[dim], tuple(way[dim] for way in (own, *ways))
        if merged and all(
            step == before * merged[-1][0]
            for step, before in zip(steps, merged[-1][1], strict=True)
        ):
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, steps))
    inner = merged[0] if merged else (1, (1,))
    sizes = {DTYPE_BYTES[each.dtype] for each in (*kernel.operands, written) if each.shape}
    kinds = {each.dtype for each in (*kernel.operands, written) if each.shape}
    return [
        float(len(merged)),
        log_of(inner[0]),
        log_of(merged[1][0] if len(merged) > 1 else 1),
        float(sum(step == 0 for step in inner[1])),
        float(sum(step > 1 for step in inner[1])),
        log_of(max(inner[1], default=1)),
        float(sum(0 in way for way in ways)),
        float(len(kinds)),
        float(max(sizes, default=0)),
        float(min(sizes, default=0)),
        float("b8" in kinds),
        float("i64" in kinds),
    ]


def _way(written: Operand, each: Operand) -> tuple[int, ...] | None:
    """The strides of an operand along the dimensions of what is written; None if it does not fit.

    A dimension that is broadcast has a stride of 0.
    """
    missing = len(written.shape) - len(each.shape)
    if missing < 0:
        return None
    strides = each.strides or _contiguous_strides(each.shape)
    found = [0] * missing
    for size, made, stride in zip(each.shape, written.shape[missing:], strides, strict=True):
        if size not in (made, 1):
            return None
        found.append(0 if size == 1 else stride)
    return tuple(found)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _joining(kernel: Kernel, written: Operand) -> Features:
    """Of tensors that are joined: along which dimension, and how long their pieces are."""
    if packet_of(kernel.op) not in ("cat", "stack") or not isinstance(kernel.args[0], tuple):
        return [0.0, 0.0, 0.0, 0.0]
    parts = [each for each in kernel.args[0] if isinstance(each, Operand)]
    along = kernel.args[1] if len(kernel.args) > 1 and isinstance(kernel.args[1], int) else 0
    rank = max(len(written.shape), 1)
    inner = math.prod(written.shape[along % rank + 1 :])
    return [
        1.0,
        log_of(inner),
        log_of(inner * _shortest(parts, along % rank, rank)),
        float(len({each.dtype for each in parts}) > 1),
    ]


def _shortest(parts: list[Operand], along: int, rank: int) -> int:
    """Of the pieces that are joined; 1 if they are stacked. Empty ones may have another rank."""
    return min((each.shape[along] for each in parts if len(each.shape) == rank), default=1)


def _fastest_extent(each: Operand) -> int:
    """Elements that lie next to each other in memory along one dimension."""
    if not each.shape:
        return 1
    if each.strides is None:
        return each.shape[-1]
    beside = [size for size, stride in zip(each.shape, each.strides, strict=True) if stride == 1]
    return max(beside, default=1)


def _reduction(kernel: Kernel) -> Features:
    operand = kernel.operands[0]
    written = kernel.outputs[0] if kernel.outputs else Operand("f32", ())
    dims = next((each for each in kernel.args[1:] if _is_sizes(each)), None)
    rank = len(operand.shape)
    reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    inner = rank - 1 in reduced
    trailing = math.prod(
        size for dim, size in enumerate(operand.shape) if reduced and dim > max(reduced)
    )
    kept = max(written.numel, 1)
    return [
        log_of(operand.numel),
        log_of(kept),
        log_of(operand.numel / kept),
        float(inner),
        float(0 in reduced),
        log_of(trailing),
        float(operand.is_channels_last),
        float(operand.strides is not None),
        log_of(operand.shape[-1] if operand.shape else 1),
        log_of(_fastest_extent(operand)),
        float(len(kernel.outputs)),
        float(operand.strides is not None and 0 in operand.strides),
        float(DTYPE_BYTES[operand.dtype]),
        float(DTYPE_BYTES[written.dtype]),
        *alignment(operand.shape[-1] if operand.shape else 1),
    ]


def _softmax(kernel: Kernel) -> Features:
    operand = max(kernel.operands, key=lambda each: each.numel)
    written = kernel.outputs[0] if kernel.outputs else operand
    outer, extent, inner = _around(operand, _classes_dim(kernel, operand))
    if packet_of(kernel.op).startswith("ctc_loss"):
        # A step along the sounds, of (steps, batch, classes), waits for the one before it.
        outer, batch, extent = kernel.operands[0].shape
        inner = batch * kernel.operands[1].shape[1]
    return [
        log_of(outer * inner),
        log_of(extent),
        *alignment(extent),
        float(DTYPE_BYTES[written.dtype]),
        float(DTYPE_BYTES[operand.dtype]),
        log_of(inner),
        log_of(outer),
        float(inner > 1),
        float(sum(each.strides is not None for each in kernel.operands)),
    ]


def _classes_dim(kernel: Kernel, operand: Operand) -> int:
    """The dimension that is summed along: given, or that of the classes behind the samples."""
    if "softmax" in kernel.op:
        return next((arg for arg in kernel.args if type(arg) is int), -1)
    return min(1, len(operand.shape) - 1)


def _around(operand: Operand, dim: int) -> tuple[int, int, int]:
    """Elements before a dimension, along it and behind it."""
    if not operand.shape:
        return 1, 1, 1
    dim %= len(operand.shape)
    return math.prod(operand.shape[:dim]), operand.shape[dim], math.prod(operand.shape[dim + 1 :])


def _embedding(kernel: Kernel) -> Features:
    indices = [each for each in kernel.operands if each.dtype in ("i64", "i32", "b8")]
    values = [each for each in kernel.operands if each not in indices]
    num_indices = max((each.numel for each in indices), default=1)
    table = values[0] if values else Operand("f32", (1,))
    written = kernel.outputs[0] if kernel.outputs else table
    return [
        log_of(num_indices),
        log_of(table.numel),
        log_of(written.numel),
        log_of(written.shape[-1] if written.shape else 1),
        log_of(table.shape[-1] if table.shape else 1),
        float(len(indices)),
        float(table.strides is not None),
        log_of(math.prod(written.shape[1:])),
        log_of(table.shape[0] if table.shape else 1),
        log_of(num_indices / max(table.shape[0] if table.shape else 1, 1)),
        float(any(each.strides is not None for each in kernel.operands)),
        float(kernel.args[-1] is True),  # summed up where indices meet
    ]


def _optimizer(kernel: Kernel) -> Features:
    lists = [each for each in kernel.args if isinstance(each, tuple) and each]
    tensors = [each for each in lists[0] if isinstance(each, Operand)] if lists else []
    numel = sum(each.numel for each in tensors)
    chunks = sum(math.ceil(each.numel / 65536) for each in tensors)
    return [
        log_of(len(tensors)),
        log_of(numel),
        log_of(numel / max(len(tensors), 1)),
        log_of(max((each.numel for each in tensors), default=1)),
        log_of(chunks),
        float(len(lists)),
        log_of(bytes_of(kernel)),
    ]


_FAMILY_FEATURES: dict[FamilyName, Callable[[Kernel], Features]] = {
    "convolution": convolution_features,
    "convolution_backward_data": convolution_features,
    "convolution_backward_weight": convolution_features,
    "matmul": product_features,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "pooling": _pooling,
    "attention": attention_features,
    "recurrent": recurrent_features,
    "pointwise": _pointwise,
    "reduction": _reduction,
    "softmax": _softmax,
    "embedding": _embedding,
    "optimizer": _optimizer,
}


def op_label(kernel: Kernel) -> str:
    """What distinguishes operators inside a family."""
    return packet_of(kernel.op)
