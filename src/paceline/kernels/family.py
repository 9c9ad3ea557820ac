"""Kernel families: which operators behave alike, and how much work a kernel of each does."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import torch

from paceline.kernels.recurrent import recurrent_weights
from paceline.steps.kernel import DTYPE_BYTES, Kernel, Operand

FamilyName = Literal[
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weight",
    "matmul",
    "batch_norm",
    "layer_norm",
    "pooling",
    "attention",
    "recurrent",
    "pointwise",
    "reduction",
    "softmax",
    "embedding",
    "optimizer",
]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)

_FAMILY_OF_OP: dict[str, FamilyName] = {
    "convolution": "convolution",
    "convolution_backward_data": "convolution_backward_data",
    "convolution_backward_weight": "convolution_backward_weight",
    "batch_norm": "batch_norm",
    "batch_norm_backward": "batch_norm",
    "attention": "attention",
    "attention_backward": "attention",
    "fused": "pointwise",
    "recurrent": "recurrent",
    "recurrent_backward": "recurrent",
}
_FAMILY_OF_PACKET: dict[str, FamilyName] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "addbmm"), "matmul"),
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_layer_norm_backward",
            "native_group_norm",
            "native_group_norm_backward",
            "_fused_rms_norm",
            "_fused_rms_norm_backward",
            "_weight_norm_interface",
            "_weight_norm_interface_backward",
        ),
        "layer_norm",
    ),
    **dict.fromkeys(
        (
            "max_pool2d_with_indices",
            "max_pool2d_with_indices_backward",
            "avg_pool2d",
            "avg_pool2d_backward",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool2d_backward",
            "adaptive_max_pool2d",
            "adaptive_max_pool2d_backward",
            "max_pool3d_with_indices",
            "max_pool3d_with_indices_backward",
            "avg_pool3d",
            "avg_pool3d_backward",
            "upsample_nearest2d",
            "upsample_nearest2d_backward",
            "upsample_bilinear2d",
            "upsample_bilinear2d_backward",
            "upsample_nearest1d",
            "upsample_nearest1d_backward",
            "upsample_linear1d",
            "upsample_linear1d_backward",
            "upsample_bicubic2d",
            "upsample_bicubic2d_backward",
            "upsample_nearest3d",
            "upsample_nearest3d_backward",
            "upsample_trilinear3d",
            "upsample_trilinear3d_backward",
            "_adaptive_avg_pool3d",
            "_adaptive_avg_pool3d_backward",
            "_upsample_bicubic2d_aa",
            "_upsample_bicubic2d_aa_backward",
            "_upsample_bilinear2d_aa",
            "_upsample_bilinear2d_aa_backward",
            "_upsample_nearest_exact1d",
            "_upsample_nearest_exact1d_backward",
            "_upsample_nearest_exact2d",
            "_upsample_nearest_exact2d_backward",
            "_upsample_nearest_exact3d",
            "_upsample_nearest_exact3d_backward",
            "grid_sampler_2d",
            "grid_sampler_2d_backward",
            "grid_sampler_3d",
            "grid_sampler_3d_backward",
            "max_unpool2d",
            "fractional_max_pool2d",
            "fractional_max_pool2d_backward",
        ),
        "pooling",
    ),
    **dict.fromkeys(
        (
            "_softmax",
            "_softmax_backward_data",
            "_log_softmax",
            "_log_softmax_backward_data",
            "_masked_softmax",
            "_masked_softmax_backward",
            "nll_loss_forward",
            "nll_loss_backward",
            "nll_loss2d_forward",
            "nll_loss2d_backward",
            "ctc_loss",
            "ctc_loss_backward",
        ),
        "softmax",
    ),
    **dict.fromkeys(
        (
            "embedding",
            "embedding_dense_backward",
            "index_select",
            "index",
            "gather",
            "index_put",
            "index_put_",
            "_index_put_impl_",
            "_unsafe_index_put",
            "index_add",
            "index_add_",
            "scatter_add",
            "scatter_add_",
            "scatter",
            "scatter_",
            "scatter_reduce",
            "scatter_reduce_",
            "index_copy",
            "index_copy_",
            "index_reduce",
            "take",
            "put",
        ),
        "embedding",
    ),
    **dict.fromkeys(
        (
            "sum",
            "mean",
            "var",
            "var_mean",
            "std",
            "amax",
            "amin",
            "max",
            "min",
            "argmax",
            "argmin",
            "linalg_vector_norm",
            "norm",
            "dot",
            "vdot",
            "prod",
            "any",
            "all",
            "cumsum",
            "cumprod",
            "logsumexp",
            "topk",
            "sort",
            "histc",
            "bincount",
            "cummax",
            "cummin",
            "logcumsumexp",
            "median",
            "kthvalue",
            "aminmax",
            "std_mean",
            "nansum",
            "count_nonzero",
            "_is_all_true",
            "trace",
            "multinomial",
        ),
        "reduction",
    ),
    # Move or make elements, one by one: pointwise by nature, though PyTorch does not tag them so.
    **dict.fromkeys(
        (
            "_to_copy",
            "clone",
            "copy_",
            "copy",
            "cat",
            "stack",
            "fill_",
            "zero_",
            "zeros",
            "zeros_like",
            "ones",
            "ones_like",
            "new_zeros",
            "new_ones",
            "new_full",
            "full",
            "full_like",
            "arange",
            "scalar_tensor",
            "native_dropout",
            "native_dropout_backward",
            "bernoulli",
            "bernoulli_",
            "uniform_",
            "normal_",
            "rand",
            "randn",
            "randn_like",
            "rand_like",
            "constant_pad_nd",
            "reflection_pad2d",
            "roll",
            "flip",
            "tril",
            "triu",
            "repeat",
            "slice_backward",
            "select_backward",
            "unfold_backward",
            "slice_scatter",
            "select_scatter",
            "as_strided_scatter",
            "glu",
            "glu_backward",
            "hardswish",
            "hardswish_",
            "hardswish_backward",
            "where",
            "masked_fill",
            "masked_fill_",
            "mse_loss",
            "mse_loss_backward",
            "binary_cross_entropy_with_logits",
            "huber_loss",
            "huber_loss_backward",
            "smooth_l1_loss",
            "smooth_l1_loss_backward",
            "tril_indices",
            "triu_indices",
            "reflection_pad1d",
            "reflection_pad1d_backward",
            "reflection_pad2d_backward",
            "replication_pad1d",
            "replication_pad1d_backward",
            "replication_pad2d",
            "replication_pad2d_backward",
            "pixel_shuffle",
            "pixel_unshuffle",
            "channel_shuffle",
            "native_channel_shuffle",
            "im2col",
            "col2im",
            "_cudnn_init_dropout_state",
            "squeeze_copy",
            "expand_copy",
            "floor_divide",
            "log_sigmoid_forward",
            "log_sigmoid_backward",
            "_prelu_kernel",
            "_prelu_kernel_backward",
            "rrelu_with_noise",
            "rrelu_with_noise_backward",
            "binary_cross_entropy",
            "binary_cross_entropy_backward",
            "soft_margin_loss",
            "soft_margin_loss_backward",
            "polar",
            "complex",
            "eye",
            "linspace",
            "randint",
            "randint_like",
            "exponential_",
            "normal",
            "diagonal_backward",
            "linalg_cross",
            "index_fill",
            "index_fill_",
            "bucketize",
            "searchsorted",
            "reflection_pad3d",
            "reflection_pad3d_backward",
            "replication_pad2d_backward",
            "replication_pad3d",
            "replication_pad3d_backward",
        ),
        "pointwise",
    ),
}


def packet_of(op: str) -> str:
    """``add.Tensor`` is ``add``: overloads of an operator run the same kernels."""
    return op.partition(".")[0]


def family_of(kernel: Kernel) -> FamilyName | None:
    """The family of a kernel; None if its operator belongs to none."""
    return family_of_op(kernel.op)


@lru_cache(maxsize=4096)
def family_of_op(op: str) -> FamilyName | None:
    """The family of an operator's kernels."""
    packet = packet_of(op)
    if packet.startswith(("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")):
        return "optimizer"
    known = _FAMILY_OF_OP.get(op) or _FAMILY_OF_PACKET.get(packet)
    return known or ("pointwise" if _is_tagged_pointwise(op) else None)


def _is_tagged_pointwise(op: str) -> bool:
    packet, _, overload = op.partition(".")
    # In-place forms (``add_``) do what the plain ones do, and only these are tagged.
    for name in (packet, packet.removesuffix("_")):
        found = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if found is not None and torch.Tag.pointwise in found.tags:
            return True
    return packet.endswith("_backward") and _is_tagged_pointwise(
        packet.removesuffix("_backward") + (f".{overload}" if overload else "")
    )


def flop_of(kernel: Kernel) -> float:
    """Floating-point operations: two per multiply-add, one per element of a pointwise kernel."""
    op, operands = packet_of(kernel.op), kernel.operands
    if op == "convolution":
        return _convolution_flop(operands[0], operands[1], kernel.outputs[0], bool(kernel.args[6]))
    if op in ("convolution_backward_data", "convolution_backward_weight"):
        return _convolution_flop(operands[1], operands[2], operands[0], bool(kernel.args[6]))
    if op in ("attention", "attention_backward"):
        query, key, value = operands[:3]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2] * (0.5 if kernel.args[5] else 1.0)
        # Two products forward, of the keys' and of the values' width; five backward, since the
        # scores are computed again (Dao, 2023).
        of_keys, of_values = (1, 1) if op == "attention" else (3, 2)
        return 2.0 * pairs * (of_keys * query.shape[-1] + of_values * value.shape[-1])
    if op in ("recurrent", "recurrent_backward"):
        # Every step multiplies inputs and states with all weights; backward twice, as ever.
        steps = math.prod(kernel.operands[0].shape[:-1])
        return 2.0 * steps * recurrent_weights(kernel) * (1.0 if op == "recurrent" else 2.0)
    if op in ("_fft_r2c", "_fft_c2r", "_fft_c2c"):
        return _fourier_flop(kernel)
    if op in ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"):
        left, right = operands[-2:]
        return 2.0 * left.numel * (right.shape[-1] if len(right.shape) > 1 else 1)
    elements = max((each.numel for each in (*operands, *kernel.outputs)), default=0)
    if op.startswith("_f"):
        elements = sum(each.numel for each in operands)
    return float(max(elements, 1))


def bytes_of(kernel: Kernel) -> float:
    """Bytes that must move between memory and the device's cores, each at least once."""
    op = packet_of(kernel.op)
    if op in ("embedding", "index_select", "index", "gather"):
        # Only the rows that are asked for are read.
        indices = sum(each.num_bytes for each in kernel.operands if each.dtype.startswith("i"))
        return float(2 * sum(each.num_bytes for each in kernel.outputs) + indices)
    if op in ("recurrent", "recurrent_backward"):
        weights = recurrent_weights(kernel) * DTYPE_BYTES[kernel.operands[0].dtype]
        return float(kernel.num_bytes + weights)
    written = 0
    if not kernel.outputs and op.endswith("_") and isinstance(kernel.args[0], tuple):
        written = sum(each.num_bytes for each in kernel.args[0])  # foreach writes its first list
    return float(max(kernel.num_bytes + written, 1))


def multiplies(family: FamilyName | None) -> bool:
    """Whether a family's arithmetic is matrix products, which tensor cores run."""
    return family in (
        "convolution",
        "convolution_backward_data",
        "convolution_backward_weight",
        "matmul",
        "attention",
        "recurrent",
    )


def _convolution_flop(image: Operand, weight: Operand, output: Operand, transposed: bool) -> float:
    # Every element of the output is a sum over the filter: 2 * output * (C/groups * R * S);
    # transposed, the image and the output change places.
    sums = image if transposed else output
    return 2.0 * sums.numel * math.prod(weight.shape[1:])


def _fourier_flop(kernel: Kernel) -> float:
    # 5 n log2 n for n complex numbers, half of it for real ones (Cooley and Tukey, 1965); of
    # several dimensions, n is their product.
    given, made = kernel.operands[0], kernel.outputs[0]
    points = made if packet_of(kernel.op) == "_fft_c2r" else given
    length = math.prod(points.shape[dim] for dim in kernel.args[1])
    return (5.0 if given.dtype == made.dtype else 2.5) * points.numel * max(math.log2(length), 1.0)
