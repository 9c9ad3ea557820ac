"""Runs a kernel for real: makes its operands from random data, and calls its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.steps.canonical import TORCH_DTYPES
from paceline.steps.kernel import Kernel, Operand

Run = Callable[[], Any]


def prepare(kernel: Kernel, device: torch.device) -> Run:
    """What runs the kernel once, on operands of its own."""
    special = _SPECIAL.get(kernel.op)
    if special is not None:
        return special(kernel, device)
    packet, _, overload = kernel.op.partition(".")
    op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if op is None:
        raise NotImplementedError(f"PyTorch {torch.__version__} has no operator aten::{kernel.op}")
    positional, named = _arguments(kernel, device)
    if _picks_along_rows(kernel):
        _fill_with_neighbours(positional[2], limit=_index_limit(kernel))
    return lambda: op(*positional, **named)


def make_operand(spec: Operand, device: torch.device, *, below: int = 2) -> Tensor:
    """A tensor of random data; integers are at least 0 and less than ``below``.

    Never zeros: they need less power, and a GPU then runs faster than it does in training.
    """
    dtype = TORCH_DTYPES[spec.dtype]
    if spec.strides is None:
        tensor = torch.empty(spec.shape, dtype=dtype, device=device)
    else:
        tensor = torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=device)
    filled = _storage_of(tensor)
    if dtype.is_floating_point:
        # Positive and near 1, so that a root or a logarithm is ordinary arithmetic.
        filled.uniform_(0.5, 1.5)
    elif dtype == torch.bool:
        filled.bernoulli_(0.5)
    elif dtype.is_complex:
        torch.view_as_real(filled).uniform_(0.5, 1.5)
    else:
        filled.random_(0, max(below, 1))
    return tensor


def _storage_of(tensor: Tensor) -> Tensor:
    """All elements of the storage as one flat tensor, whatever the view's strides."""
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor, (numel,), (1,))


def _arguments(kernel: Kernel, device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    limit = _index_limit(kernel)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for each in kernel.args:
        if _is_named(each):
            named[each[0]] = _value(each[1], device, limit)
        else:
            positional.append(_value(each, device, limit))
    if kernel.op.partition(".")[0] in _FACTORIES:
        named["device"] = device
    return positional, named


_FACTORIES = [
    "zeros",
    "ones",
    "full",
    "arange",
    "scalar_tensor",
    "rand",
    "randn",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "eye",
]


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and type(value[0]) is str
        and not value[0].startswith(("dtype:", "format:"))
    )


def _value(value: Any, device: torch.device, limit: int) -> Any:
    if isinstance(value, Operand):
        return make_operand(value, device, below=limit)
    if isinstance(value, tuple):
        return [_value(each, device, limit) for each in value]
    if isinstance(value, str) and value.startswith("dtype:"):
        return TORCH_DTYPES[value.removeprefix("dtype:")]
    if isinstance(value, str) and value.startswith("format:"):
        return getattr(torch, value.removeprefix("format:"))
    if isinstance(value, str) and value in ("cpu", "cuda", "cuda:0", "meta"):
        return device
    return value


def _index_limit(kernel: Kernel) -> int:
    """What integer operands must stay below, to be valid indices or classes."""
    packet = kernel.op.partition(".")[0]
    operands = kernel.operands
    if packet == "embedding_dense_backward":
        return int(kernel.args[2])
    if packet in ("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward"):
        shape = operands[1].shape
        return shape[-1] * shape[-2]
    if packet in ("nll_loss_forward", "nll_loss2d_forward"):
        return operands[0].shape[1] if len(operands[0].shape) > 1 else operands[0].shape[0]
    if packet in ("nll_loss_backward", "nll_loss2d_backward"):
        return operands[1].shape[1] if len(operands[1].shape) > 1 else operands[1].shape[0]
    if packet in _ALONG_DIMENSION:
        return operands[0].shape[int(kernel.args[1])]
    if packet in ("take", "put"):
        return operands[0].numel
    if packet in _INDEXED:
        places = kernel.args[1]
        return min(
            size for size, each in zip(operands[0].shape, places, strict=False) if each is not None
        )
    if operands and operands[0].shape and packet.startswith(("embedding", "index", "_index")):
        return operands[0].shape[0]
    return 2


def _picks_along_rows(kernel: Kernel) -> bool:
    """Whether elements of a row are picked or added up, as by positions relative to each other."""
    if kernel.op.partition(".")[0] not in ("gather", "scatter_add"):
        return False
    index = kernel.args[2]
    rank = len(index.shape)
    return int(kernel.args[1]) % max(rank, 1) == rank - 1 and index.shape[-1] > _FEW_PICKED


_FEW_PICKED = 32
"""As many at random places of a row cost what as many neighbours do."""


def _fill_with_neighbours(index: Tensor, *, limit: int) -> None:
    """Ascending indices: positions are, and random ones would take an access each."""
    ascending = torch.arange(index.shape[-1], device=index.device) * limit // index.shape[-1]
    held = index[tuple(slice(1) if step == 0 else slice(None) for step in index.stride())]
    held.copy_(ascending[: held.shape[-1]])


_ALONG_DIMENSION = (
    "gather",
    "index_add",
    "index_add_",
    "index_copy",
    "index_fill",
    "index_fill_",
    "index_reduce",
    "index_select",
    "scatter",
    "scatter_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
)
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


def _volume_pooling_backward(kernel: Kernel, device: torch.device) -> Run:
    """With the indices that pooling finds: gradients of one window meet, others do not."""
    gradient, volume = (make_operand(each, device) for each in kernel.operands[:2])
    window, stride, padding, dilation, ceil = kernel.args[2:7]
    pool = torch.ops.aten.max_pool3d_with_indices
    found = pool(volume, window, stride, padding, dilation, ceil)[1]
    op = torch.ops.aten.max_pool3d_with_indices_backward
    return lambda: op(gradient, volume, window, stride, padding, dilation, ceil, found)


def _sampled(kernel: Kernel, device: torch.device, *, backward: bool) -> Run:
    """With places that lie side by side, as networks ask for them; random ones miss all caches."""
    operands = [make_operand(each, device) for each in kernel.operands]
    at = 2 if backward else 1
    batch, *sizes, num_dims = kernel.operands[at].shape
    unit = torch.eye(num_dims, num_dims + 1, device=device).expand(batch, -1, -1)
    grid = functional.affine_grid(0.9 * unit, [batch, 1, *sizes], align_corners=False)
    operands[at] = grid.to(operands[at].dtype)
    op = getattr(torch.ops.aten, kernel.op)
    settings = [
        list(each) if isinstance(each, tuple) else each for each in kernel.args[len(operands) :]
    ]
    return lambda: op(*operands, *settings)


def _probabilities(kernel: Kernel, device: torch.device) -> Run:
    """With numbers from 0 to 1; CUDA stops at others."""
    operands = [make_operand(each, device) * 0.6 for each in kernel.operands]
    op = getattr(torch.ops.aten, kernel.op)
    return lambda: op(*operands)


def _attention(kernel: Kernel, device: torch.device, *, backward: bool) -> Run:
    query, key, value = (make_operand(each, device) for each in kernel.operands[:3])
    mask = make_operand(kernel.operands[3], device) if kernel.args[3] is not None else None
    rate = 0.1 if kernel.args[4] else 0.0
    causal = bool(kernel.args[5])

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=rate, is_causal=causal
        )

    inputs: tuple[Tensor, ...] = (query, key, value)
    if mask is not None and len(kernel.outputs) > len(inputs):
        inputs = (*inputs, mask)  # a learned bias has a gradient, too
    return _differentiated(forward, inputs, backward=backward)


def _recurrent(kernel: Kernel, device: torch.device, *, backward: bool) -> Run:
    inputs = make_operand(kernel.operands[0], device)
    _, kind, width, projected, num_layers, bias, batch_first, dropout, both = kernel.args
    own = {"rnn_tanh": {"nonlinearity": "tanh"}, "rnn_relu": {"nonlinearity": "relu"}}
    make: Any = {"lstm": nn.LSTM, "gru": nn.GRU}.get(kind, nn.RNN)
    layers = make(
        inputs.shape[-1],
        width,
        num_layers=num_layers,
        bias=bias,
        batch_first=batch_first,
        dropout=0.1 if dropout else 0.0,
        bidirectional=both,
        **({"proj_size": projected} if projected else {}),
        **own.get(kind, {}),
        device=device,
        dtype=inputs.dtype,
    )

    def forward() -> Tensor:
        output: Tensor = layers(inputs)[0]
        return output

    return _differentiated(forward, (inputs, *layers.parameters()), backward=backward)


def _ctc_loss(kernel: Kernel, device: torch.device, *, backward: bool) -> Run:
    """With sounds and texts of full length, and classes other than the blank one."""
    log_probs = make_operand(kernel.operands[0], device).log_softmax(2)
    texts = torch.randint(1, log_probs.shape[2], kernel.operands[1].shape, device=device)
    lengths = [[size] * len(texts) for size in (len(log_probs), texts.shape[1])]
    aten = torch.ops.aten
    if not backward:
        return lambda: aten._ctc_loss.default(log_probs, texts, *lengths)
    found = aten._ctc_loss.default(log_probs, texts, *lengths)
    gradient = torch.ones_like(found[0])
    return lambda: aten._ctc_loss_backward.default(
        gradient, log_probs, texts, *lengths, *found, 0, True
    )


def _batch_norm(kernel: Kernel, device: torch.device, *, backward: bool) -> Run:
    image = make_operand(kernel.operands[1 if backward else 0], device)
    channels = image.shape[1]
    has_weights, trains = kernel.args[-2:]
    wide = torch.float32 if image.dtype in (torch.bfloat16, torch.float16) else image.dtype
    mean, variance, weight, bias = torch.rand(4, channels, device=device, dtype=wide) + 0.5

    def forward() -> Tensor:
        return functional.batch_norm(
            image,
            mean,
            variance,
            weight if has_weights else None,
            bias if has_weights else None,
            training=bool(trains),
        )

    inputs = (image, weight, bias) if has_weights else (image,)
    gradient = make_operand(kernel.operands[0], device) if backward else None
    return _differentiated(forward, inputs, backward=backward, gradient=gradient)


def _differentiated(
    forward: Callable[[], Tensor],
    inputs: tuple[Tensor, ...],
    *,
    backward: bool,
    gradient: Tensor | None = None,
) -> Run:
    """The forward pass as in training, or the backward pass of one that was run before."""
    for each in inputs:
        each.requires_grad_()
    if not backward:
        return forward
    with torch.enable_grad():
        output = forward()
    if gradient is None:
        gradient = torch.rand_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def _convolution_backward(kernel: Kernel, device: torch.device, *, data: bool) -> Run:
    gradient, image, weight = (make_operand(each, device) for each in kernel.operands[:3])
    settings = [list(each) if isinstance(each, tuple) else each for each in kernel.args[3:9]]
    mask = [data, not data, False]
    op = torch.ops.aten.convolution_backward.default
    return lambda: op(gradient, image, weight, None, *settings, mask)


_SPECIAL: dict[str, Callable[[Kernel, torch.device], Run]] = {
    "attention": lambda kernel, device: _attention(kernel, device, backward=False),
    "attention_backward": lambda kernel, device: _attention(kernel, device, backward=True),
    "recurrent": lambda kernel, device: _recurrent(kernel, device, backward=False),
    "recurrent_backward": lambda kernel, device: _recurrent(kernel, device, backward=True),
    "batch_norm": lambda kernel, device: _batch_norm(kernel, device, backward=False),
    "batch_norm_backward": lambda kernel, device: _batch_norm(kernel, device, backward=True),
    "convolution_backward_data": lambda kernel, device: _convolution_backward(
        kernel, device, data=True
    ),
    "convolution_backward_weight": lambda kernel, device: _convolution_backward(
        kernel, device, data=False
    ),
    "ctc_loss": lambda kernel, device: _ctc_loss(kernel, device, backward=False),
    "ctc_loss_backward": lambda kernel, device: _ctc_loss(kernel, device, backward=True),
    "max_pool3d_with_indices_backward": _volume_pooling_backward,
    "binary_cross_entropy": _probabilities,
    "binary_cross_entropy_backward": _probabilities,
    "grid_sampler_2d": lambda kernel, device: _sampled(kernel, device, backward=False),
    "grid_sampler_3d": lambda kernel, device: _sampled(kernel, device, backward=False),
    "grid_sampler_2d_backward": lambda kernel, device: _sampled(kernel, device, backward=True),
    "grid_sampler_3d_backward": lambda kernel, device: _sampled(kernel, device, backward=True),
}
