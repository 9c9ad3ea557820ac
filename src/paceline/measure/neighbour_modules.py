"""Random modules other than convolutions: products, norms, attention, optimizers and the rest."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.measure.random_tensors import backward, lowered, random_image, random_size


def linear(rng: random.Random) -> None:
    """A linear layer on rows or on sequences."""
    width = random_size(rng, 16, 8192) if rng.random() < 0.9 else random_size(rng, 8192, 50304)
    made = random_size(rng, 2, 8192) if rng.random() < 0.85 else random_size(rng, 1000, 50304)
    rows = random_size(rng, 1, 65536)
    rows = max(1, min(rows, (1 << 29) // max(width, made)))
    shape: tuple[int, ...] = (rows, width)
    if rng.random() < 0.4 and rows > 64:
        length = rng.choice((49, 64, 128, 196, 197, 256, 512, 577, 1024))
        shape = (max(1, rows // length), length, width)
    rows_in = torch.empty(shape, requires_grad=True)
    backward(nn.Linear(width, made, bias=rng.random() < 0.7)(rows_in))


def batched_product(rng: random.Random) -> None:
    """Many products at once, the right side transposed or not."""
    copies, m, k, n = (
        random_size(rng, low, high) for low, high in ((2, 2048), (8, 2048), (8, 1024), (8, 2048))
    )
    copies = max(1, min(copies, (1 << 28) // max(m * k, k * n, m * n)))
    left = torch.empty(copies, m, k, requires_grad=True)
    right = (
        torch.empty(copies, n, k).transpose(1, 2)
        if rng.random() < 0.5
        else torch.empty(copies, k, n)
    )
    backward(left @ right.detach().requires_grad_())


def batch_norm(rng: random.Random) -> None:
    """Batch norm of images, signals and volumes; norms of each sample run the same kernels."""
    style = rng.random()
    if style < 0.2:
        image, norm = _signal_or_volume(rng, random_size(rng, 3, 1024))
    else:
        channels = random_size(rng, 3, 2048)
        image, norm = random_image(rng, channels), nn.BatchNorm2d(channels)
        if style > 0.92 and image.shape[0] * channels < 65_536:
            norm = nn.InstanceNorm2d(channels)
    if torch.is_autocast_enabled("cpu") and rng.random() < 0.8:
        image = image.to(torch.get_autocast_dtype("cpu"))
    backward(norm(image.requires_grad_()))


def _signal_or_volume(rng: random.Random, channels: int) -> tuple[Tensor, nn.Module]:
    """An input of one or three dimensions, and its batch norm."""
    if rng.random() < 0.6:
        length = random_size(rng, 16, 65_536)
        batch = max(2, min(random_size(rng, 2, 512), (1 << 27) // (channels * length)))
        return torch.empty(batch, channels, length), nn.BatchNorm1d(channels)
    side, frames = rng.choice((7, 14, 28, 56, 64, 112)), rng.choice((2, 4, 8, 16, 32))
    batch = max(1, min(random_size(rng, 1, 64), (1 << 27) // (channels * frames * side**2)))
    return torch.empty(batch, channels, frames, side, side), nn.BatchNorm3d(channels)


def layer_norm(rng: random.Random) -> None:
    """Layer norm of rows, or of images with their channels last."""
    columns = random_size(rng, 16, 8192) if rng.random() < 0.5 else 32 * random_size(rng, 1, 64)
    rows = min(random_size(rng, 16, 1 << 20), (1 << 28) // columns)
    table = torch.empty(rows, columns)
    if rng.random() < 0.3:  # channels last of a view, as in ConvNeXt
        side = rng.choice((7, 14, 28, 56))
        table = torch.empty(max(1, rows // side**2), columns, side, side).permute(0, 2, 3, 1)
    backward(nn.LayerNorm(columns)(table.requires_grad_()))


def wide_layer_norm(rng: random.Random) -> None:
    """Layer norm of long rows, or over all of an image."""
    columns = random_size(rng, 4096, 262_144)
    rows = max(1, min(random_size(rng, 1, 65_536), (1 << 28) // columns))
    backward(nn.LayerNorm(columns)(torch.empty(rows, columns, requires_grad=True)))


def group_norm(rng: random.Random) -> None:
    """Group norm of images, signals and volumes."""
    groups = rng.choice((1, 4, 8, 16, 32, 32))
    channels = groups * random_size(rng, 1, 64)
    image, style = random_image(rng, channels), rng.random()
    if style < 0.2:
        length = random_size(rng, 64, 65_536)
        batch = max(1, min(random_size(rng, 1, 128), (1 << 28) // (channels * length)))
        image = torch.empty(batch, channels, length)
    elif style < 0.4:
        side = rng.choice((8, 16, 24, 32, 48, 64, 96))
        batch = max(1, min(random_size(rng, 1, 16), (1 << 28) // (channels * side**3)))
        image = torch.empty(batch, channels, side, side, side)
    backward(nn.GroupNorm(groups, channels)(lowered(rng, image).requires_grad_()))


def pooling(rng: random.Random) -> None:
    """Pooling or upsampling of images."""
    image = lowered(rng, random_image(rng, random_size(rng, 8, 2048))).requires_grad_()
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
    backward(output)


def attention(rng: random.Random) -> None:
    """Attention, causal, masked or neither."""
    q, k, v = _queries_keys_values(rng)
    length = q.shape[-2]
    style = rng.random()
    mask = torch.empty(1, 1, length, length) if style > 0.85 else None
    rate = 0.1 if rng.random() < 0.3 else 0.0
    backward(
        functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=rate, is_causal=style < 0.45
        )
    )


def biased_attention(rng: random.Random) -> None:
    """Attention with a learned bias of its own for every sample and head."""
    q, k, v = _queries_keys_values(rng, most_numel=1 << 24)
    batch, heads, length, _ = q.shape
    batch = max(1, min(batch, (1 << 28) // (heads * length * length)))
    bias = torch.empty(batch, heads, length, length, requires_grad=True)
    q, k, v = (each[:batch] for each in (q, k, v))
    backward(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def _queries_keys_values(
    rng: random.Random, *, most_numel: int = 1 << 27
) -> tuple[Tensor, Tensor, Tensor]:
    """As a layer's projection gives them, or each in a tensor of its own."""
    length = rng.choice(
        (49, 64, 128, 196, 197, 256, 384, 512, 577, 1024, 2048, random_size(rng, 16, 2048))
    )
    heads, width = (
        rng.choice((3, 4, 6, 8, 12, 16, 24, 32)),
        rng.choice((32, 64, 64, 64, 80, 96, 128)),
    )
    batch = max(1, min(random_size(rng, 1, 512), most_numel // (length * heads * width)))
    if rng.random() < 0.8:
        made = [torch.empty(batch, length, heads, width).transpose(1, 2) for _ in range(3)]
    else:
        made = [torch.empty(batch, heads, length, width) for _ in range(3)]
    q, k, v = (each.requires_grad_() for each in made)
    return q, k, v


def _activation_shape(rng: random.Random) -> Tensor:
    if rng.random() < 0.55:
        return lowered(rng, random_image(rng, random_size(rng, 3, 2048)))
    columns = random_size(rng, 1, 16384)
    rows = max(1, min(random_size(rng, 1, 262144), (1 << 28) // columns))
    return lowered(rng, torch.empty(rows, columns))


_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.relu,
    functional.relu,
    lambda x: functional.relu(x * 1.0, inplace=True),  # autograd forbids it on a leaf's view
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
    torch.log,
    functional.softplus,
    lambda x: functional.prelu(x, x.new_ones(1)),
    lambda x: functional.glu(x, -1) if x.shape[-1] % 2 == 0 else torch.sin(x),
    lambda x: x.clamp(-1.0, 1.0),
    lambda x: x.masked_fill(torch.empty(x.shape, dtype=torch.bool), 0.0),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x.float(),
    lambda x: x.bfloat16(),
    lambda x: x.clone(),
)


def activation(rng: random.Random) -> None:
    """One operation on every element."""
    tensor = _activation_shape(rng).requires_grad_()
    backward(
        rng.choice(_ACTIVATIONS)(tensor * 1.0 if rng.random() < 0.3 else tensor.view_as(tensor))
    )


def binary(rng: random.Random) -> None:
    """Two tensors, of one shape or broadcast."""
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
    backward(op(left, right.requires_grad_()))


def joined(rng: random.Random) -> None:
    """Concatenated images."""
    image = lowered(rng, random_image(rng, random_size(rng, 8, 1024), numel=1 << 27))
    parts = [image] + [
        torch.empty_like(image[:, : max(1, image.shape[1] // rng.choice((1, 2, 4)))])
        for _ in range(rng.randint(1, 4))
    ]
    backward(torch.cat([each.detach().requires_grad_() for each in parts], 1))


def copy(rng: random.Random) -> None:
    """Copies into another layout."""
    image = lowered(rng, random_image(rng, random_size(rng, 8, 1024), numel=1 << 27))
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


def reduction(rng: random.Random) -> None:
    """A sum, mean, variance or norm over some dimensions."""
    tensor = _activation_shape(rng)
    dims: tuple[int, ...]
    if tensor.dim() == 4:
        dims = rng.choice(((0, 2, 3), (2, 3), (2, 3), (1,), (0,)))
    elif rng.random() < 0.3:  # a bias's gradient in a transformer
        length = rng.choice((49, 64, 128, 197, 256, 512, 1024))
        tensor = tensor[: max(1, tensor.shape[0] // length), None].expand(-1, length, -1)
        tensor, dims = tensor.contiguous(), rng.choice(((0, 1), (0, 1), (0,), (-1,)))
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


def softmax(rng: random.Random) -> None:
    """A softmax or a cross entropy over few or many classes."""
    usual = rng.choice((10, 100, 1000, 21841, 30522, 32000, 50257, 50304, 128256))
    columns = usual if rng.random() < 0.4 else random_size(rng, 2, 131072)
    rows = max(1, min(random_size(rng, 8, 131072), (1 << 29) // columns))
    logits = lowered(rng, torch.empty(rows, columns)).requires_grad_()
    if rng.random() < 0.5:
        functional.cross_entropy(logits, torch.zeros(rows, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
    else:
        backward(rng.choice((functional.softmax, functional.log_softmax))(logits, dim=-1))


def long_softmax(rng: random.Random) -> None:
    """Scores of attention that is not fused: a softmax of each row of square matrices."""
    length = rng.choice((128, 256, 512, 1024, 1500, 2048, 4096, random_size(rng, 64, 8192)))
    heads = rng.choice((4, 8, 12, 16, 32))
    batch = max(1, min(random_size(rng, 1, 64), (1 << 28) // (heads * length * length)))
    scores = lowered(rng, torch.empty(batch, heads, length, length)).requires_grad_()
    dtype = torch.float32 if rng.random() < 0.4 else None
    backward(functional.softmax(scores, dim=-1, dtype=dtype))


def embedding(rng: random.Random) -> None:
    """Rows of a table, and their gradient."""
    rows, columns = random_size(rng, 2, 100_000), random_size(rng, 16, 2048)
    shape = (random_size(rng, 1, 256), random_size(rng, 1, 1024))
    tokens = torch.zeros(shape, dtype=torch.int64)
    backward(nn.Embedding(rows, columns)(tokens))
    table = torch.empty(random_size(rng, 64, 65536), columns)
    torch.index_select(table, 0, tokens.flatten()[: shape[0]])


def optimizer(rng: random.Random) -> None:
    """An optimizer's second step over many parameters."""
    parameters = []
    budget = 10 ** rng.uniform(4.5, 8.6)
    count = round(10 ** rng.uniform(0.3, 2.7))
    for _ in range(count):
        size = int(min(10 ** rng.uniform(1, 7.5), budget))
        budget -= size
        if size < 1:
            break
        width = random_size(rng, 1, max(1, min(size, 4096)))
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
