"""Make a CPU build dispatch as a CUDA build would.

Fake tensors need a device that the build knows, so a step is captured on the CPU. Four things
then differ from what a GPU runs, and are put right here, at the level where PyTorch decides them:
autocast's list of operators that want float32 (CUDA has a long one, the CPU nearly none), dropout
(one fused kernel on CUDA), attention (a fused kernel on CUDA wherever there is one for it) and
recurrent layers (one call of cuDNN's, in :mod:`paceline.steps.recurrent`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paceline.steps.ctc import use_ctc_of_numbers
from paceline.steps.grouped import use_grouped_products
from paceline.steps.packed import use_packed_sequences
from paceline.steps.recurrent import use_cudnn_layers

# What CUDA autocasts to float32 and the CPU does not (PyTorch's "Autocast Op Reference", and its
# aten/src/ATen/autocast_mode.h).
_FLOAT32_OPS = tuple(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "  # noqa: SIM905
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
    "rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d "
    "upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d "
    "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
    "upsample_bicubic2d _upsample_bicubic2d_aa".split()
)
# The same, if the caller names no dtype of the result.
_FLOAT32_DTYPE_OPS = (
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
)
# What the CPU casts to float32 or widens to the widest of its operands, and CUDA does not.
_UNCAST_OPS = (
    "cat",
    "stack",
    "avg_pool3d",
    "max_pool3d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool3d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
)
_LOW = (torch.bfloat16, torch.float16)
_MOST_FUSED_WIDTH = 256  # of a head, in half precision: cuDNN's and flash attention's limit


@contextmanager
def cuda_like(*, autocast: bool) -> Iterator[None]:
    """Inside, CPU tensors are dispatched as CUDA tensors are. Process-wide: not for threads."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl("dropout", _dropout, "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl("group_norm", _group_norm, "AutogradCPU")  # type: ignore[no-untyped-call]
        use_cudnn_layers(library)
        use_grouped_products(library)
        use_ctc_of_numbers(library)
        use_packed_sequences(library)
        if autocast:
            for name in filter(_is_left_alone, _FLOAT32_OPS):
                library.impl(name, _in_float32(_overload(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
            for name in filter(_is_left_alone, _FLOAT32_DTYPE_OPS):
                library.impl(name, _to_float32(_overload(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that these replace the CPU's rule is the point
                for name in _UNCAST_OPS:
                    library.impl(name, _as_it_is(_overload(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
                library.impl("cross_entropy_loss", _cross_entropy, "AutocastCPU")  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _is_left_alone(name: str) -> bool:
    """Whether the CPU's autocast has no rule of its own for an operator."""
    return not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU")


def _overload(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def _in_float32(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return op(*map(_widened, args), **{key: _widened(kwargs[key]) for key in kwargs})

    return run


def _to_float32(op: Callable[..., Any]) -> Callable[..., Any]:
    """CUDA's kernels read half precision and write float32 at once: no separate cast."""
    takes_dtype = "softmax" in str(op)  # as its third argument

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            named = kwargs.get("dtype") is not None or (takes_dtype and len(args) > 2)
            if isinstance(args[0], Tensor) and args[0].dtype in _LOW and not named:
                kwargs["dtype"] = torch.float32
            return op(*args, **kwargs)

    return run


def _as_it_is(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return op(*args, **kwargs)

    return run


def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """On CUDA the log-softmax stays in low precision, and only the loss is float32."""
    if label_smoothing > 0 or target.is_floating_point():
        plain = _in_float32(torch.ops.aten.cross_entropy_loss.default)
        smooth: Tensor = plain(logits, target, weight, reduction, ignore_index, label_smoothing)
        return smooth
    logs = torch.log_softmax(logits, 0 if logits.dim() == 1 else 1, dtype=logits.dtype)
    loss: Tensor = torch.ops.aten.nll_loss_nd(logs, target, weight, reduction, ignore_index)
    return loss


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    return torch.native_dropout(tensor, p, True)[0]


def _group_norm(
    image: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """CUDA's kernel takes no other layout (aten/src/ATen/native/group_norm.cpp); the CPU's does."""
    batch, channels = image.shape[:2]
    size = math.prod(image.shape[2:])
    norm = torch.ops.aten.native_group_norm.default
    args = (image.contiguous(), weight, bias, batch, channels, size, num_groups, eps)
    result: Tensor = norm(*args)[0]
    return result


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    result: Tensor
    fits = value.shape[-1] == query.shape[-1]
    if not _is_fused(query, key, attn_mask, is_causal=is_causal, is_grouped=enable_gqa) or (
        not fits and not _is_fused_with(value, is_grouped=enable_gqa)
    ):
        math_path = torch.ops.aten._scaled_dot_product_attention_math.default
        result = math_path(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return result
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            filled = torch.zeros(attn_mask.shape, dtype=query.dtype)
            attn_mask = filled.masked_fill(attn_mask.logical_not(), float("-inf"))
        while attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
    if not fits or (attn_mask is not None and attn_mask.requires_grad):
        # CUDA's memory-efficient kernel: the CPU's takes no values of another width than the keys,
        # and has no gradient of a bias.
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
        result = efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
        return result
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    result = fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return result


def _is_fused_with(value: Tensor, *, is_grouped: bool) -> bool:
    """Whether CUDA fuses attention whose values have another width than its keys (MLA).

    Memory-efficient attention alone does (aten/src/ATen/native/transformers/sdp_utils_cpp.h).
    """
    step = 4 if value.dtype == torch.float32 else 8
    return not is_grouped and value.shape[-1] % step == 0


def _is_fused(
    query: Tensor, key: Tensor, mask: Tensor | None, *, is_causal: bool, is_grouped: bool
) -> bool:
    """Whether CUDA has one kernel for it; otherwise the scores are tensors of their own.

    What `torch._fused_sdp_choice` answered on an H200 (PyTorch 2.11) for 2,376 combinations of
    dtype, width, mask, grouped queries, dropout and lengths.
    """
    width, full = query.shape[-1], (*query.shape[:-1], key.shape[-2])
    is_learned = mask is not None and mask.requires_grad
    if query.dim() != 4 or query.dtype == torch.float64:
        return False
    # Seen in the memory of T5, whose bias is the same for all samples: not fused there.
    if mask is not None and is_learned and mask.shape != full:
        return False
    if query.dtype == torch.float32:  # memory-efficient attention alone
        return not is_grouped and width % 4 == 0
    if is_learned:  # likewise
        return not is_grouped and width % 8 == 0
    is_aligned = width % 8 == 0 and width <= _MOST_FUSED_WIDTH
    if mask is None:  # flash attention pads what cuDNN's does not take
        return is_aligned or (
            width <= _MOST_FUSED_WIDTH and not (is_causal and query.shape[-2] != key.shape[-2])
        )
    return is_aligned
