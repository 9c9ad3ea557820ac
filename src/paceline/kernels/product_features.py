"""What networks see of kernels that multiply: convolutions, products, attention, recurrence."""

from __future__ import annotations

import math

from paceline.kernels.recurrent import RECURRENT_GATES, length_and_batch, recurrent_algorithm
from paceline.steps.kernel import DTYPE_BYTES, Kernel, Operand

Features = list[float]
_TILE = 128  # rows and columns of the output that one thread block of a matrix product makes
_NUM_PROCESSORS = 132  # of an H100 or H200
_FAR = 16  # how far a window reaches matters little beyond this


def log_of(value: float) -> float:
    """The logarithm to base 2; -1 of nothing."""
    return math.log2(max(value, 2**-20)) if value > 0 else -1.0


def alignment(size: int) -> Features:
    """Tensor cores want multiples of 8 (16 bytes); each power of two below costs."""
    return [float(size % 8 == 0), float(size % 4 == 0), float(size % 2 == 0), float(size % 64 == 0)]


def _tiling(rows: int, columns: int, copies: int) -> Features:
    """How much of the tiles is waste, how many there are, and how full the last wave is."""
    found = []
    for tile in (_TILE, _TILE // 2):
        tiles = math.ceil(rows / tile) * math.ceil(columns / tile) * copies
        waves = tiles / _NUM_PROCESSORS
        waste = tiles * tile * tile / (rows * columns * copies)
        found += [log_of(waste), log_of(tiles), log_of(math.ceil(waves) / waves)]
    return found


def _product(copies: int, m: int, n: int, k: int) -> Features:
    return [
        log_of(copies),
        log_of(m),
        log_of(n),
        log_of(k),
        log_of(min(m, n)),
        *alignment(m),
        *alignment(n),
        *alignment(k),
        *_tiling(m, n, copies),
    ]


def convolution_features(kernel: Kernel) -> Features:
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
        log_of(image.shape[0]),
        log_of(channels),
        log_of(filters),
        log_of(groups),
        log_of(spatial_in),
        log_of(spatial_out),
        log_of(image.shape[-1]),
        log_of(weight.shape[-1]),
        log_of(weight.shape[2] if len(weight.shape) > 3 else 1),
        log_of(taps),
        float(stride[-1]),
        log_of(math.prod(stride)),
        float(min(padding[-1], _FAR)),
        float(min(dilation[-1], _FAR)),
        log_of(dilation[-1]),
        log_of(dilation[-1] * (weight.shape[-1] - 1) + 1),
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
        *(float(_is_turned(each)) for each in (image, weight, output)),
        log_of(image.num_bytes),
        log_of(weight.num_bytes),
        log_of(output.num_bytes),
        *_product(groups, m, n, k),
        *alignment(channels),
        *alignment(filters),
        *alignment(spatial_in),  # channels first, these lie in a row
        *alignment(spatial_out),
        *_implementation(image, output, weight, groups),
    ]


def _is_turned(each: Operand) -> bool:
    """Whether a signal's channels lie next to each other: cuDNN's callers copy it first."""
    return len(each.shape) == 3 and each.strides is not None and each.strides[-1] != 1


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
    wider = log_of(math.prod(weight.shape[2:])) - 2.0
    return [*map(float, kinds), *(wider * kind for kind in kinds)]


def product_features(kernel: Kernel) -> Features:
    """Of a product of matrices, or of many at once."""
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
        log_of(left.num_bytes),
        log_of(right.num_bytes),
    ]


def _matrix(each: Operand) -> Operand:
    if len(each.shape) >= 2:
        return each
    return Operand(each.dtype, (each.shape[0] if each.shape else 1, 1))


def _is_transposed(each: Operand) -> bool:
    return each.strides is not None and each.strides[-1] != 1


def attention_features(kernel: Kernel) -> Features:
    """Of fused attention: heads, lengths, widths, masks."""
    query, key, value = kernel.operands[:3]
    heads, length, width = math.prod(query.shape[:-2]), query.shape[-2], query.shape[-1]
    return [
        log_of(heads),
        log_of(length),
        log_of(key.shape[-2]),
        log_of(width),
        log_of(value.shape[-1]),
        *alignment(width),
        *alignment(length),
        *alignment(key.shape[-2]),
        *_tiling(length, key.shape[-2], heads),
        float(kernel.args[3] is not None),
        float(bool(kernel.args[4])),
        float(bool(kernel.args[5])),
        float(len(kernel.outputs) > 3),  # the gradient of a learned bias
        log_of(heads * math.ceil(length / 128)),
        float(query.strides is None),
    ]


def recurrent_features(kernel: Kernel) -> Features:
    """Of recurrent layers: steps that wait for each other, and what each of them multiplies."""
    given = kernel.operands[0]
    _, kind, width, projected, num_layers, has_bias, batch_first, dropout, both = kernel.args[:9]
    length, batch = length_and_batch(kernel)
    gates, directions = RECURRENT_GATES[kind], 2 if both else 1
    algorithm = recurrent_algorithm(kernel)
    made = gates * width if kernel.op == "recurrent" else width  # columns of a step's product
    return [
        log_of(length),
        log_of(batch),
        log_of(given.shape[-1]),
        log_of(width),
        log_of(gates * width),
        log_of(num_layers),
        log_of(length * num_layers),  # steps that wait for each other
        log_of(batch * gates * width * width),  # what one of them multiplies
        log_of(gates * width * width * DTYPE_BYTES[given.dtype]),
        float(kind == "lstm"),
        float(kind == "gru"),
        float(projected > 0),
        float(has_bias),
        float(batch_first),
        float(dropout),
        float(both),
        *alignment(width),
        *alignment(batch),
        *alignment(given.shape[-1]),
        float(algorithm == "small states stay"),
        float(algorithm == "weights stay"),
        *_tiling(batch, made, directions),  # the directions run beside each other,
        *_tiling(batch, made, directions * min(num_layers, length)),  # and layers one step behind
        log_of(length + num_layers - 1),
        log_of(directions * num_layers * batch * gates * width * width),
    ]
