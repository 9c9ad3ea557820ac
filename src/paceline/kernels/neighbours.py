"""Random kernels around those that networks use, so that a fit covers networks it never saw.

Every neighbour is a small module, run forward and backward on fake tensors: its kernels then have
exactly the arguments that PyTorch would give them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster.device import Precision
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import recording

Case = Callable[[random.Random], None]
_MAX_NUMEL = 1 << 30


def neighbour_kernels(rng: random.Random, precision: Precision, num_cases: int) -> Iterator[Kernel]:
    """The kernels of ``num_cases`` random small modules in one precision."""
    cases, weights = zip(*_CASES, strict=True)
    with recording(precision) as calls:
        for case in rng.choices(cases, weights, k=num_cases):
            calls.clear()
            try:
                case(rng)
            except (RuntimeError, ValueError, MemoryError):
                continue  # sizes that do not fit together, such as a window larger than its image
            for call in calls:
                yield from call.kernels


def _size(rng: random.Random, low: int, high: int) -> int:
    """A size between the two, evenly in its logarithm; half of them round numbers."""
    value: float = low * (high / low) ** rng.random()
    step = rng.choice((1, 1, 1, 2, 4, 8, 8, 8, 16, 32, 64, 64))
    return max(low, round(value / step) * step)


def _image(rng: random.Random, channels: int, *, numel: int = 1 << 28) -> Tensor:
    """A batch of images of at most ``numel`` elements, in either memory format."""
    side = rng.choice((7, 14, 28, 56, 112, 224, _size(rng, 4, 256), _size(rng, 4, 64)))
    other = side if rng.random() < 0.9 else max(1, side + rng.randint(-3, 8))
    batch = min(_size(rng, 1, 512), max(1, numel // (channels * side * other)))
    image = torch.empty(batch, channels, side, other)
    if rng.random() < 0.4:
        image = image.contiguous(memory_format=torch.channels_last)
    return image


def _backward(output: Tensor) -> None:
    output.backward(torch.empty_like(output))  # type: ignore[no-untyped-call]


def _in_format(module: nn.Module, image: Tensor) -> nn.Module:
    is_last = image.is_contiguous(memory_format=torch.channels_last) and image.shape[1] > 1
    for name, own in list(module.named_parameters()) if is_last else ():
        if own.dim() == 4:  # module.to() wants to swap tensors, which often fails among fakes
            last = torch.empty_like(own, memory_format=torch.channels_last)
            setattr(module, name, nn.Parameter(last))
    return module


# (side, stride), as often as networks use them
_WINDOWS = (
    *((1, 1),) * 3,
    *((3, 1),) * 4,
    (1, 2),
    (3, 2),
    (5, 1),
    (7, 2),
    (4, 4),
    (2, 2),
    (7, 1),
)


def _usual_convolution(rng: random.Random) -> None:
    """As networks have them: round channel counts, usual windows, images that were halved."""
    width = rng.choice((8, 8, 16, 16, 32, 32, 64))
    channels = width * _size(rng, 1, max(1, 1024 // width))
    filters = rng.choice(
        (channels, channels, channels * 2, channels * 4, width * _size(rng, 1, 24))
    )
    if rng.random() < 0.3:
        channels, filters = filters, channels
    side, stride = rng.choice(_WINDOWS)
    groups = 1
    style = rng.random()
    if style < 0.05:
        channels, filters = 3, rng.choice((16, 24, 32, 48, 64, 64, 96, 128, 768))
        side, stride = rng.choice(((3, 1), (3, 2), (7, 2), (4, 4), (11, 4), (16, 16)))
    elif style < 0.2:
        side, groups, filters = rng.choice((3, 3, 5, 7)), channels, channels
        stride = rng.choice((1, 1, 2))
    elif style < 0.3:
        groups = rng.choice((2, 4, 8, 16, 32))
        channels, filters = (max(1, round(each / groups)) * groups for each in (channels, filters))
        side = 3
    first = rng.choice((224, 224, 224, 256, 299, 384, 192, 128, 64, 32))
    extent = max(side, -(-first // 2 ** rng.randrange(6)))
    if channels == 3:
        extent = first
    batch = rng.choice((2, 4, 8, 16, 32, 32, 64, 64, 64, 128, 128, 256, 256, 512))
    batch = max(1, min(batch, (1 << 29) // (max(channels, filters) * extent * extent)))
    image = torch.empty(batch, channels, extent, extent)
    if rng.random() < 0.25:
        image = image.contiguous(memory_format=torch.channels_last)
    module = nn.Conv2d(
        channels,
        filters,
        side,
        stride=stride,
        padding=side // 2 if side != stride else 0,
        groups=groups,
        bias=rng.random() < 0.3,
    )
    _backward(_in_format(module, image.requires_grad_())(image))


def _convolution(rng: random.Random) -> None:
    style = rng.random()
    channels = 3 if style < 0.04 else _size(rng, 4, 2048)
    filters = _size(rng, 8, 2048)
    side = rng.choice((1, 1, 1, 1, 3, 3, 3, 3, 5, 7, 2, 4, 11, 9))
    groups = 1
    if 0.6 < style < 0.82:
        channels = _size(rng, 16, 1536)
        groups, filters = channels, channels
    elif style > 0.9:
        groups = rng.choice((2, 4, 8, 16, 32))
        channels, filters = (max(1, round(each / groups)) * groups for each in (channels, filters))
    window: tuple[int, int] = (side, side)
    if side in (3, 7) and rng.random() < 0.08:
        window = rng.choice(((1, side), (side, 1)))
    stride = rng.choice((1, 1, 1, 1, 2, 2, side, 3))
    dilation = rng.choice((1,) * 12 + (2, 3))
    same = tuple(dilation * (each - 1) // 2 for each in window)
    padding = (0, 0) if rng.random() < 0.2 else (same[0], same[1])
    image = _image(rng, channels, numel=1 << 27).requires_grad_()
    make = nn.ConvTranspose2d if rng.random() < 0.03 and groups == 1 else nn.Conv2d
    module = make(
        channels,
        filters,
        window,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.3,
    )
    output = _in_format(module, image)(image)
    if output.numel() < _MAX_NUMEL:
        _backward(output)


def _linear(rng: random.Random) -> None:
    width = _size(rng, 16, 8192) if rng.random() < 0.9 else _size(rng, 8192, 50304)
    made = _size(rng, 2, 8192) if rng.random() < 0.85 else _size(rng, 1000, 50304)
    rows = _size(rng, 1, 65536)
    rows = max(1, min(rows, (1 << 29) // max(width, made)))
    shape: tuple[int, ...] = (rows, width)
    if rng.random() < 0.4 and rows > 64:
        length = rng.choice((49, 64, 128, 196, 197, 256, 512, 577, 1024))
        shape = (max(1, rows // length), length, width)
    rows_in = torch.empty(shape, requires_grad=True)
    _backward(nn.Linear(width, made, bias=rng.random() < 0.7)(rows_in))


def _batched_product(rng: random.Random) -> None:
    copies, m, k, n = (
        _size(rng, low, high) for low, high in ((2, 2048), (8, 2048), (8, 1024), (8, 2048))
    )
    copies = max(1, min(copies, (1 << 28) // max(m * k, k * n, m * n)))
    left = torch.empty(copies, m, k, requires_grad=True)
    right = (
        torch.empty(copies, n, k).transpose(1, 2)
        if rng.random() < 0.5
        else torch.empty(copies, k, n)
    )
    _backward(left @ right.detach().requires_grad_())


def _batch_norm(rng: random.Random) -> None:
    channels = _size(rng, 3, 2048)
    image = _image(rng, channels).requires_grad_()
    if torch.is_autocast_enabled("cpu") and rng.random() < 0.8:
        image = image.detach().to(torch.get_autocast_dtype("cpu")).requires_grad_()
    _backward(nn.BatchNorm2d(channels)(image))


def _layer_norm(rng: random.Random) -> None:
    columns = _size(rng, 16, 8192)
    rows = min(_size(rng, 16, 131072), (1 << 28) // columns)
    table = torch.empty(rows, columns)
    if rng.random() < 0.2:  # channels last of a view, as in ConvNeXt
        table = torch.empty(max(1, rows // 196), columns, 14, 14).permute(0, 2, 3, 1)
    _backward(nn.LayerNorm(columns)(table.requires_grad_()))


def _group_norm(rng: random.Random) -> None:
    groups = rng.choice((1, 8, 16, 32))
    channels = groups * _size(rng, 1, 64)
    _backward(nn.GroupNorm(groups, channels)(_image(rng, channels).requires_grad_()))


def _pooling(rng: random.Random) -> None:
    image = _low(rng, _image(rng, _size(rng, 8, 2048))).requires_grad_()
    side, stride = rng.choice(((2, 2), (3, 2), (3, 1), (2, 1), (5, 3), (7, 7)))
    make = rng.choice((0, 0, 1, 1, 2, 3))
    if make == 0:
        output = functional.max_pool2d(image, side, stride, padding=side // 2 if side > 2 else 0)
    elif make == 1:
        output = functional.avg_pool2d(image, side, stride, padding=side // 2 if side > 2 else 0)
    elif make == 2:
        output = functional.adaptive_avg_pool2d(image, rng.choice((1, 1, 1, 6, 7)))
    else:
        output = functional.interpolate(
            image, scale_factor=2.0, mode=rng.choice(("nearest", "bilinear"))
        )
    _backward(output)


def _attention(rng: random.Random) -> None:
    length = rng.choice(
        (49, 64, 128, 196, 197, 256, 384, 512, 577, 1024, 2048, _size(rng, 16, 2048))
    )
    heads, width = (
        rng.choice((3, 4, 6, 8, 12, 16, 24, 32)),
        rng.choice((32, 64, 64, 64, 80, 96, 128)),
    )
    batch = max(1, min(_size(rng, 1, 512), (1 << 27) // (length * heads * width)))
    if rng.random() < 0.8:
        q, k, v = (torch.empty(batch, length, heads, width).transpose(1, 2) for _ in range(3))
    else:
        q, k, v = (torch.empty(batch, heads, length, width) for _ in range(3))
    q, k, v = (each.requires_grad_() for each in (q, k, v))
    style = rng.random()
    mask = torch.empty(1, 1, length, length) if style > 0.85 else None
    rate = 0.1 if rng.random() < 0.3 else 0.0
    _backward(
        functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=rate, is_causal=style < 0.45
        )
    )


def _low(rng: random.Random, tensor: Tensor) -> Tensor:
    """Under autocast most activations are of low precision."""
    if torch.is_autocast_enabled("cpu") and rng.random() < 0.75:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def _activation_shape(rng: random.Random) -> Tensor:
    if rng.random() < 0.55:
        return _low(rng, _image(rng, _size(rng, 3, 2048)))
    columns = _size(rng, 1, 16384)
    rows = max(1, min(_size(rng, 1, 262144), (1 << 28) // columns))
    return _low(rng, torch.empty(rows, columns))


_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.relu,
    functional.relu,
    lambda x: functional.relu(x, inplace=True),
    functional.gelu,
    lambda x: functional.gelu(x, approximate="tanh"),
    functional.silu,
    functional.hardswish,
    functional.hardsigmoid,
    functional.relu6,
    functional.leaky_relu,
    functional.elu,
    functional.mish,
    torch.sigmoid,
    torch.tanh,
    lambda x: functional.dropout(x, 0.1),
    torch.exp,
    lambda x: x * 0.5,
    lambda x: x + 1.0,
    torch.neg,
    torch.abs,
    torch.sqrt,
    torch.rsqrt,
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x.float(),
    lambda x: x.bfloat16(),
    lambda x: x.clone(),
)


def _activation(rng: random.Random) -> None:
    tensor = _activation_shape(rng).requires_grad_()
    _backward(
        rng.choice(_ACTIVATIONS)(tensor * 1.0 if rng.random() < 0.3 else tensor.view_as(tensor))
    )


def _binary(rng: random.Random) -> None:
    left = _activation_shape(rng).requires_grad_()
    style = rng.random()
    if style < 0.5:
        right = torch.empty_like(left)
    elif style < 0.65:
        right = torch.empty_like(left, dtype=torch.float32)
    elif left.dim() == 4:
        shape = rng.choice(
            (
                (left.shape[0], left.shape[1], 1, 1),
                (1, left.shape[1], 1, 1),
                (left.shape[0], 1, 1, 1),
            )
        )
        right = torch.empty(shape, dtype=left.dtype)
    else:
        right = torch.empty(left.shape[-1], dtype=left.dtype)
    op = rng.choice((torch.add, torch.add, torch.mul, torch.mul, torch.sub, torch.div))
    _backward(op(left, right.requires_grad_()))


def _joined(rng: random.Random) -> None:
    image = _low(rng, _image(rng, _size(rng, 8, 1024), numel=1 << 27))
    parts = [image] + [
        torch.empty_like(image[:, : max(1, image.shape[1] // rng.choice((1, 2, 4)))])
        for _ in range(rng.randint(1, 4))
    ]
    _backward(torch.cat([each.detach().requires_grad_() for each in parts], 1))


def _copy(rng: random.Random) -> None:
    image = _low(rng, _image(rng, _size(rng, 8, 1024), numel=1 << 27))
    style = rng.randrange(5)
    if style == 0:
        image.permute(0, 2, 3, 1).contiguous()
    elif style == 1:
        image.flatten(2).transpose(1, 2).contiguous()
    elif style == 2:
        image[:, : max(1, image.shape[1] // 2)].contiguous()
    elif style == 3:
        torch.zeros_like(image).copy_(image)
    else:
        functional.pad(image, (0, 1, 0, 1))


def _reduction(rng: random.Random) -> None:
    tensor = _activation_shape(rng)
    if tensor.dim() == 4:
        dims = rng.choice(((0, 2, 3), (2, 3), (2, 3), (1,), (0,)))
    else:
        dims = rng.choice(((0,), (0,), (1,), (0, 1)))
    keep = rng.random() < 0.5
    choice = rng.randrange(5)
    if choice < 2:
        torch.ops.aten.sum.dim_IntList(tensor, dims, keep)
    elif choice == 2:
        torch.ops.aten.mean.dim(tensor, dims, keep)
    elif choice == 3:
        torch.ops.aten.var.correction(tensor, dims, keepdim=keep)
    else:
        torch.ops.aten.linalg_vector_norm.default(tensor, 2, dims, keep)


def _softmax(rng: random.Random) -> None:
    columns = _size(rng, 2, 50304)
    rows = max(1, min(_size(rng, 8, 131072), (1 << 28) // columns))
    logits = _low(rng, torch.empty(rows, columns)).requires_grad_()
    if rng.random() < 0.5:
        functional.cross_entropy(logits, torch.zeros(rows, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
    else:
        _backward(rng.choice((functional.softmax, functional.log_softmax))(logits, dim=-1))


def _embedding(rng: random.Random) -> None:
    rows, columns = _size(rng, 2, 100_000), _size(rng, 16, 2048)
    shape = (_size(rng, 1, 256), _size(rng, 1, 1024))
    tokens = torch.zeros(shape, dtype=torch.int64)
    _backward(nn.Embedding(rows, columns)(tokens))
    table = torch.empty(_size(rng, 64, 65536), columns)
    torch.index_select(table, 0, tokens.flatten()[: shape[0]])


def _optimizer(rng: random.Random) -> None:
    parameters = []
    budget = 10 ** rng.uniform(4.5, 8.6)
    count = round(10 ** rng.uniform(0.3, 2.7))
    for _ in range(count):
        size = int(min(10 ** rng.uniform(1, 7.5), budget))
        budget -= size
        if size < 1:
            break
        width = _size(rng, 1, max(1, min(size, 4096)))
        parameter = nn.Parameter(torch.empty(max(1, size // width), width))
        parameter.grad = torch.empty_like(parameter)
        parameters.append(parameter)
    if not parameters:
        return
    style = rng.randrange(6)
    if style < 2:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, 0.1, momentum=0.9, weight_decay=rng.choice((0.0, 1e-4)), foreach=True
        )
    elif style == 2:
        optimizer = torch.optim.SGD(parameters, 0.1, foreach=True)
    elif style == 3:
        optimizer = torch.optim.AdamW(parameters, foreach=True, capturable=False)
    elif style == 4:
        optimizer = torch.optim.Adam(parameters, fused=True)
    else:
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True)
    optimizer.step()
    optimizer.step()


_CASES: tuple[tuple[Case, float], ...] = (
    (_usual_convolution, 24),
    (_convolution, 12),
    (_linear, 9),
    (_batched_product, 2),
    (_batch_norm, 3),
    (_layer_norm, 2),
    (_group_norm, 0.5),
    (_pooling, 2.5),
    (_attention, 5),
    (_activation, 3),
    (_binary, 2),
    (_joined, 1),
    (_copy, 1),
    (_reduction, 3),
    (_softmax, 2),
    (_embedding, 1.5),
    (_optimizer, 2),
)
