"""What a family's network sees of a kernel: sizes as logarithms, layout, alignment, dtype.

Nothing here depends on the device but the number of its multiprocessors, which decides how evenly
a product's tiles fall on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.kernels.family import FamilyName, bytes_of, flop_of, packet_of
from paceline.steps.kernel import DTYPE_BYTES, Kernel, Operand

Features = list[float]
_TILE = 128  # rows and columns of the output that one thread block of a matrix product makes
_NUM_PROCESSORS = 132  # of an H100 or H200


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
        _log(flop),
        _log(num_bytes),
        _log(flop / num_bytes),
        _log(written),
        float(dtype == "f32"),
        float(dtype == "bf16"),
        float(dtype == "f16"),
        float(kernel.math == "tf32"),
    ]


def _log(value: float) -> float:
    return math.log2(max(value, 2**-20)) if value > 0 else -1.0


def _alignment(size: int) -> Features:
    """Tensor cores want multiples of 8 (16 bytes); each power of two below costs."""
    return [float(size % 8 == 0), float(size % 4 == 0), float(size % 2 == 0), float(size % 64 == 0)]


def _tiling(rows: int, columns: int, copies: int) -> Features:
    """How much of the tiles is waste, how many there are, and how full the last wave is."""
    found = []
    for tile in (_TILE, _TILE // 2):
        tiles = math.ceil(rows / tile) * math.ceil(columns / tile) * copies
        waves = tiles / _NUM_PROCESSORS
        waste = tiles * tile * tile / (rows * columns * copies)
        found += [_log(waste), _log(tiles), _log(math.ceil(waves) / waves)]
    return found


def _product(copies: int, m: int, n: int, k: int) -> Features:
    return [
        _log(copies),
        _log(m),
        _log(n),
        _log(k),
        _log(min(m, n)),
        *_alignment(m),
        *_alignment(n),
        *_alignment(k),
        *_tiling(m, n, copies),
    ]


def _convolution(kernel: Kernel) -> Features:
    """As an implicit product of (N*OH*OW) x (C/g*R*S) and (C/g*R*S) x (K/g), g times."""
    if kernel.op == "convolution":
        image, weight, output = kernel.operands[0], kernel.operands[1], kernel.outputs[0]
    else:
        output, image, weight = kernel.operands[:3]
    stride, padding, dilation, transposed, _, groups = kernel.args[3:9]
    spatial_in, spatial_out = math.prod(image.shape[2:]), math.prod(output.shape[2:])
    taps = math.prod(weight.shape[2:])
    channels, filters = image.shape[1] // groups, output.shape[1] // groups
    positions = image.shape[0] * (spatial_in if transposed else spatial_out)
    m, n, k = {
        "convolution": (positions, filters, channels * taps),
        "convolution_backward_data": (image.shape[0] * spatial_in, channels, filters * taps),
        "convolution_backward_weight": (filters, channels * taps, positions),
    }[kernel.op]
    return [
        _log(image.shape[0]),
        _log(channels),
        _log(filters),
        _log(groups),
        _log(spatial_in),
        _log(spatial_out),
        _log(image.shape[-1]),
        _log(weight.shape[-1]),
        _log(weight.shape[2]),
        _log(taps),
        float(stride[-1]),
        float(padding[-1]),
        float(dilation[-1]),
        float(transposed),
        float(groups > 1),
        float(channels == 1 and groups > 1),
        float(taps == 1),
        float(weight.shape[-1] == 3 and stride[-1] == 1 and groups == 1),  # Winograd's case
        float(image.is_channels_last),
        float(weight.is_channels_last),
        float(output.is_channels_last),
        float(kernel.op == "convolution" and kernel.args[2] is not None),
        float(len(image.shape)),
        _log(image.num_bytes),
        _log(weight.num_bytes),
        _log(output.num_bytes),
        *_product(groups, m, n, k),
        *_alignment(channels),
        *_alignment(filters),
        *_alignment(spatial_in),  # channels first, these lie in a row
        *_alignment(spatial_out),
        *_implementation(image, output, weight, groups),
    ]


def _implementation(image: Operand, output: Operand, weight: Operand, groups: int) -> Features:
    """Which of cuDNN's and PyTorch's own kernels runs, and how its time may grow with the window.

    Each kind is as good as an operator of its own: depthwise weight gradients of 7x7 windows take
    35 times as long in fp32 as in bf16 on an H200 where channels come last.
    """
    is_depthwise = groups > 1 and weight.shape[1] == 1
    is_last = image.is_channels_last or output.is_channels_last
    is_low = image.dtype != "f32"
    kinds = [
        *(
            is_depthwise and is_last == last and is_low == low
            for last in (True, False)
            for low in (True, False)
        ),
        groups > 1 and not is_depthwise,
        groups == 1 and is_last,
        groups == 1 and not is_last,
    ]
    wider = _log(math.prod(weight.shape[2:])) - 2.0
    return [*map(float, kinds), *(wider * kind for kind in kinds)]


def _matmul(kernel: Kernel) -> Features:
    left, right = (_matrix(each) for each in kernel.operands[-2:])
    copies = math.prod(left.shape[:-2])
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    has_bias = len(kernel.operands) > 2
    return [
        *_product(copies, m, n, k),
        float(_is_transposed(left)),
        float(_is_transposed(right)),
        float(has_bias),
        float(has_bias and len(kernel.operands[0].shape) == 1),
        float(copies > 1),
        _log(left.num_bytes),
        _log(right.num_bytes),
    ]


def _matrix(each: Operand) -> Operand:
    if len(each.shape) >= 2:
        return each
    return Operand(each.dtype, (each.shape[0] if each.shape else 1, 1))


def _is_transposed(each: Operand) -> bool:
    return each.strides is not None and each.strides[-1] != 1


def _batch_norm(kernel: Kernel) -> Features:
    image = kernel.operands[0]
    spatial = math.prod(image.shape[2:])
    return [
        _log(image.shape[0]),
        _log(image.shape[1]),
        _log(spatial),
        _log(image.shape[0] * spatial),
        float(image.is_channels_last),
        float(kernel.args[-1]),
        *_alignment(image.shape[1]),
        *_alignment(spatial),
    ]


def _layer_norm(kernel: Kernel) -> Features:
    operand = max(kernel.operands, key=lambda each: each.numel)
    columns = _normed_together(kernel, operand)
    rows = max(operand.numel // max(columns, 1), 1)
    return [
        _log(rows),
        _log(columns),
        *_alignment(columns),
        float(operand.is_channels_last),
        float(operand.strides is not None),
        float(len(kernel.outputs)),
    ]


def _normed_together(kernel: Kernel, operand: Operand) -> int:
    """Elements that share one norm."""
    if kernel.op.startswith("_weight_norm"):
        last = kernel.args[-1]  # the dimension that keeps norms of its own; PyTorch omits 0
        return operand.numel // operand.shape[last if isinstance(last, int) else 0]
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
        _log(image.shape[0] * image.shape[1]),
        _log(math.prod(image.shape[2:])),
        _log(math.prod(output.shape[2:])),
        _log(image.shape[1]),
        _log(math.prod(window)),
        _log(math.prod(step)),
        float(image.is_channels_last),
        float(any(each.is_channels_last for each in kernel.operands)),
    ]


def _attention(kernel: Kernel) -> Features:
    query, key = kernel.operands[:2]
    heads, length, width = math.prod(query.shape[:-2]), query.shape[-2], query.shape[-1]
    return [
        _log(heads),
        _log(length),
        _log(key.shape[-2]),
        _log(width),
        *_alignment(width),
        *_alignment(length),
        float(kernel.args[3] is not None),
        float(bool(kernel.args[4])),
        float(bool(kernel.args[5])),
        _log(heads * math.ceil(length / 128)),
        float(query.strides is None),
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
        _log(largest.numel),
        _log(read_bytes),
        _log(sum(each.num_bytes for each in outputs)),
        float(len(operands)),
        float(len(alike)),
        float(mismatched),
        float(len(operands) - len(alike)),
        float(sum(each.strides is not None for each in operands)),
        float(any(each.strides is not None and 0 in each.strides for each in operands)),
        float(written.is_channels_last),
        _log(largest.shape[-1] if largest.shape else 1),
        _log(_fastest_extent(largest)),
        float(len(largest.shape)),
        float(DTYPE_BYTES[written.dtype]),
        float(DTYPE_BYTES[operands[0].dtype]) if operands else 0.0,
        float(written.numel % 4 == 0),
    ]


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
        _log(operand.numel),
        _log(kept),
        _log(operand.numel / kept),
        float(inner),
        float(0 in reduced),
        _log(trailing),
        float(operand.is_channels_last),
        float(operand.strides is not None),
        _log(operand.shape[-1] if operand.shape else 1),
        _log(_fastest_extent(operand)),
        float(len(kernel.outputs)),
        float(operand.strides is not None and 0 in operand.strides),
    ]


def _softmax(kernel: Kernel) -> Features:
    operand = max(kernel.operands, key=lambda each: each.numel)
    columns = operand.shape[-1] if operand.shape else 1
    written = kernel.outputs[0] if kernel.outputs else operand
    return [
        _log(operand.numel // max(columns, 1)),
        _log(columns),
        *_alignment(columns),
        float(DTYPE_BYTES[written.dtype]),
        float(DTYPE_BYTES[operand.dtype]),
    ]


def _embedding(kernel: Kernel) -> Features:
    indices = [each for each in kernel.operands if each.dtype in ("i64", "i32", "b8")]
    values = [each for each in kernel.operands if each not in indices]
    num_indices = max((each.numel for each in indices), default=1)
    table = values[0] if values else Operand("f32", (1,))
    written = kernel.outputs[0] if kernel.outputs else table
    return [
        _log(num_indices),
        _log(table.numel),
        _log(written.numel),
        _log(written.shape[-1] if written.shape else 1),
        _log(table.shape[-1] if table.shape else 1),
        float(len(indices)),
        float(table.strides is not None),
    ]


def _optimizer(kernel: Kernel) -> Features:
    lists = [each for each in kernel.args if isinstance(each, tuple) and each]
    tensors = [each for each in lists[0] if isinstance(each, Operand)] if lists else []
    numel = sum(each.numel for each in tensors)
    chunks = sum(math.ceil(each.numel / 65536) for each in tensors)
    return [
        _log(len(tensors)),
        _log(numel),
        _log(numel / max(len(tensors), 1)),
        _log(max((each.numel for each in tensors), default=1)),
        _log(chunks),
        float(len(lists)),
        _log(bytes_of(kernel)),
    ]


_FAMILY_FEATURES: dict[FamilyName, Callable[[Kernel], Features]] = {
    "convolution": _convolution,
    "convolution_backward_data": _convolution,
    "convolution_backward_weight": _convolution,
    "matmul": _matmul,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "pooling": _pooling,
    "attention": _attention,
    "pointwise": _pointwise,
    "reduction": _reduction,
    "softmax": _softmax,
    "embedding": _embedding,
    "optimizer": _optimizer,
}


def op_label(kernel: Kernel) -> str:
    """What distinguishes operators inside a family."""
    return packet_of(kernel.op)
