"""From an aten call, as PyTorch dispatches it, to the kernels that it runs.

Names that differ between a CPU and a CUDA build become one name; what one call does in several
kernels (a convolution's backward pass) becomes several; what only changes metadata becomes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from paceline.steps.bags import BAG, BAG_BACKWARD, bag_backward_kernel, bag_kernel
from paceline.steps.ctc import CTC, CTC_BACKWARD, ctc_backward_kernel, ctc_kernel
from paceline.steps.grouped import GROUPED, grouped_kernels
from paceline.steps.kernel import Kernel, Operand
from paceline.steps.recurrent import MODES

_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.complex64: "c64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
}
TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}
"""The short names of dtypes, and what PyTorch calls them."""

# Allocate or look, and start no kernel.
_FREE = frozenset(
    {
        "empty.memory_format",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "lift_fresh",
        "_unsafe_view",
        "_reshape_alias",
        "_local_scalar_dense",
        "set_.source_Storage",
        "set_.source_Storage_storage_offset",
        "resize_",
        "as_strided_",
        "transpose_",
        "t_",
        "squeeze_",
        "squeeze_.dim",
        "unsqueeze_",
        "detach_",
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes",
        "is_same_size",
        "_has_compatible_shallow_copy_type",
    }
)

# Arguments whose value changes the kernel although it is a float.
_KEEP_FLOATS = frozenset({"pow.Tensor_Scalar", "pow_.Scalar", "norm.ScalarOpt_dim"})

_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}
_ATTENTION_BACKWARD = {f"{name}_backward" for name in _ATTENTION}
_BATCH_NORM = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
_BATCH_NORM_BACKWARD = {f"{name}_backward" for name in _BATCH_NORM}

_RECURRENT = {"_cudnn_rnn": "recurrent", "_cudnn_rnn_backward": "recurrent_backward"}

# Multiplications that a GPU may run in TF32 when its tensors are float32: cuDNN's by default.
_CUDNN = (
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weight",
    "recurrent",
    "recurrent_backward",
)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "attention", "attention_backward")

_SUMS = ("sum", "sum.dim_IntList", "prod", "prod.dim_int")


def operand(tensor: Tensor) -> Operand:
    """A tensor as an operand."""
    return _operand(tensor.dtype, tuple(tensor.shape), tensor.stride())


@lru_cache(maxsize=4096)
def _operand(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
    name = _DTYPES.get(dtype)
    if name is None:
        raise ValueError(
            f"The step uses a tensor of {dtype}, which paceline has no cost for; "
            f"it knows {', '.join(str(each).removeprefix('torch.') for each in _DTYPES)}."
        )
    shape = tuple(int(size) for size in shape)
    strides = tuple(int(stride) for stride in strides)
    return Operand(name, shape, None if _is_contiguous(shape, strides) else strides)


@lru_cache(maxsize=4096)
def op_name(func: Any) -> str:
    """``aten.add.Tensor`` is ``add.Tensor``, ``aten.relu.default`` is ``relu``."""
    return str(func).removeprefix("aten.").removesuffix(".default")


def kernels_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, *, precision: str
) -> tuple[Kernel, ...]:
    """The kernels that a call runs; none if it only makes a view or reads metadata."""
    name = op_name(func)
    if name in _FREE or func.is_view:
        return ()
    outputs = _tensors(result)
    if name in _ATTENTION:
        kernel = _attention("attention", _by_name(func, args, kwargs), outputs[:1])
        return (_with_math(kernel, precision),)
    if name in _ATTENTION_BACKWARD:
        # Of query, key and value; of the bias only where it is learned.
        kernel = _attention("attention_backward", _by_name(func, args, kwargs), outputs[:4])
        return (_with_math(kernel, precision),)
    if name in _BATCH_NORM:
        return (_batch_norm(args, outputs),)
    if name in _BATCH_NORM_BACKWARD:
        return (_batch_norm_backward(name, args, outputs),)
    if name in _RECURRENT:
        kernel = _recurrent(_RECURRENT[name], _by_name(func, args, kwargs), outputs[:1])
        return (_with_math(kernel, precision),)
    if name == "convolution_backward":
        return _convolution_backward(args, precision)
    if name == BAG:
        return (bag_kernel(operand(args[0]), operand(args[1]), outputs[0]),)
    if name == BAG_BACKWARD and outputs:
        return (bag_backward_kernel(operand(args[0]), operand(args[1]), outputs[0]),)
    if name == GROUPED:
        products = grouped_kernels(operand(args[0]), operand(args[1]), outputs[0])
        return tuple(_with_math(kernel, precision) for kernel in products)
    if name.partition(".")[0] == CTC:
        return (ctc_kernel(operand(args[0]), outputs[1]),)
    if name.partition(".")[0] == CTC_BACKWARD:
        return (ctc_backward_kernel(operand(args[1]), operand(args[6])),)
    if name == "_safe_softmax":
        return _safe_softmax(operand(args[0]), int(args[1]), outputs[0])
    kernel = Kernel(name, _canonical_args(name, args, kwargs), outputs=outputs)
    if not any(each.numel for each in (*kernel.operands, *outputs)):
        return ()
    if name in _SUMS and _is_cast_first(kernel):
        return _cast_and_sum(kernel)
    return (_with_math(kernel, precision),)


def handed_over_bytes(kernels: Sequence[Kernel]) -> int:
    """What the kernels of one call write for each other, and nobody else sees."""
    is_cast = len(kernels) == 2 and kernels[0].op == "_to_copy"
    return kernels[0].outputs[0].num_bytes if is_cast else 0


def _is_cast_first(kernel: Kernel) -> bool:
    """Whether PyTorch sums a copy in the result's type: of flags and small integers, always.

    Only half precision is read as it is and summed in float32 (ATen/native/ReduceOpsUtils.h).
    """
    given, made = kernel.operands[0].dtype, kernel.outputs[0].dtype
    return given != made and not (given in ("bf16", "f16") and made == "f32")


def _cast_and_sum(kernel: Kernel) -> tuple[Kernel, Kernel]:
    given, made = kernel.operands[0], kernel.outputs[0].dtype
    wide = Operand(made, given.shape, given.strides)
    copied = Kernel("_to_copy", (given, ("dtype", f"dtype:{made}")), outputs=(wide,))
    return copied, Kernel(kernel.op, (wide, *kernel.args[1:]), kernel.math, kernel.outputs)


def _with_math(kernel: Kernel, precision: str) -> Kernel:
    """Mark what runs on tensor cores in TF32: cuDNN's calls by default, products if asked for."""
    multiplies = (*_CUDNN, *_PRODUCTS) if precision == "tf32" else _CUDNN
    if kernel.op not in multiplies or kernel.operands[0].dtype != "f32":
        return kernel
    return Kernel(kernel.op, kernel.args, "tf32", kernel.outputs)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _tensors(value: Any) -> tuple[Operand, ...]:
    if isinstance(value, Tensor):
        return (operand(value),)
    if isinstance(value, list | tuple):
        return tuple(each for item in value for each in _tensors(item))
    return ()


def _canonical_args(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    keep_floats = name in _KEEP_FLOATS
    named = [
        (key, _canonical(value, keep_floats))
        for key, value in sorted(kwargs.items())
        if key not in ("device", "layout", "pin_memory", "generator", "non_blocking")
        and value is not None
    ]
    return (*(_canonical(value, keep_floats) for value in args), *named)


def _canonical(value: Any, keep_floats: bool) -> Any:
    if isinstance(value, Tensor):
        return operand(value)
    if isinstance(value, list | tuple):
        return tuple(_canonical(each, keep_floats) for each in value)
    if isinstance(value, float):
        return value if keep_floats else 0.5
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, torch.dtype):
        return f"dtype:{_DTYPES.get(value, 'f32')}"
    if isinstance(value, torch.memory_format):
        return f"format:{str(value).removeprefix('torch.')}"
    return str(value)  # a device or a layout among the positional arguments


def _by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _attention(name: str, values: dict[str, Any], outputs: tuple[Operand, ...]) -> Kernel:
    """(query, key, value, mask, dropout, causal), whichever implementation was called."""
    mask = values.get("attn_mask") if "attn_mask" in values else values.get("attn_bias")
    return Kernel(
        name,
        (
            *(operand(values[each]) for each in ("query", "key", "value")),
            operand(mask) if isinstance(mask, Tensor) else None,
            values.get("dropout_p", 0.0) > 0,
            bool(values.get("is_causal", False)),
        ),
        outputs=outputs,
    )


_KIND_OF_MODE = {mode: kind for kind, mode in MODES.items()}


def _recurrent(name: str, values: dict[str, Any], outputs: tuple[Operand, ...]) -> Kernel:
    """(input, kind, width, projected to, layers, biases, batch first, dropout, two directions).

    How the outputs lie follows from whether the batch comes first.
    """
    return Kernel(
        name,
        (
            operand(values["input"]),
            _KIND_OF_MODE[values["mode"]],
            int(values["hidden_size"]),
            int(values["proj_size"]),
            int(values["num_layers"]),
            values["weight_stride0"] > 2,
            bool(values["batch_first"]),
            values["dropout"] > 0,
            bool(values["bidirectional"]),
        ),
        outputs=tuple(Operand(each.dtype, each.shape) for each in outputs),
    )


def _safe_softmax(scores: Operand, dim: int, made: Operand) -> tuple[Kernel, ...]:
    """A softmax, and zeros for the rows that are masked altogether: four kernels on CUDA."""
    rows = tuple(1 if i == dim % len(made.shape) else n for i, n in enumerate(made.shape))
    masked, masked_rows = Operand("b8", made.shape), Operand("b8", rows)
    zero = Operand(made.dtype, ())
    return (
        Kernel("_softmax", (scores, dim, False), outputs=(made,)),
        Kernel("eq.Scalar", (scores, 0.5), outputs=(masked,)),
        Kernel("all.dim", (masked, dim, True), outputs=(masked_rows,)),
        Kernel("where.self", (masked_rows, zero, made), outputs=(made,)),
    )


def _batch_norm(args: Sequence[Any], outputs: tuple[Operand, ...]) -> Kernel:
    """(input, whether it has weights, whether it trains)."""
    return Kernel(
        "batch_norm", (operand(args[0]), args[1] is not None, bool(args[5])), outputs=outputs[:1]
    )


def _batch_norm_backward(name: str, args: Sequence[Any], outputs: tuple[Operand, ...]) -> Kernel:
    # cuDNN's takes (input, grad, ...), the others (grad, input, ...); both have one shape.
    trains = bool(args[7]) if name == "native_batch_norm_backward" else True
    inputs = (operand(args[0]), operand(args[1]))
    return Kernel(
        "batch_norm_backward", (*inputs, args[2] is not None, trains), outputs=outputs[:1]
    )


def _convolution_backward(args: Sequence[Any], precision: str) -> tuple[Kernel, ...]:
    """One kernel for each gradient asked for: of the input, of the weight, of the bias."""
    grad, image, weight = (operand(each) for each in args[:3])
    settings = tuple(_canonical(each, False) for each in args[4:10])
    wants_data, wants_weight, wants_bias = args[10]
    kernels = []
    if wants_data:
        data = Operand(image.dtype, image.shape, grad.strides and image.strides)
        kernels.append(
            Kernel("convolution_backward_data", (grad, image, weight, *settings), outputs=(data,))
        )
    if wants_weight:
        kernels.append(
            Kernel(
                "convolution_backward_weight", (grad, image, weight, *settings), outputs=(weight,)
            )
        )
    if wants_bias:
        dims = (0, *range(2, len(grad.shape)))
        bias = Operand(grad.dtype, (grad.shape[1],))
        kernels.append(Kernel("sum.dim_IntList", (grad, dims), outputs=(bias,)))
    return tuple(_with_math(kernel, precision) for kernel in kernels)
