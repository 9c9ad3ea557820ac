"""Random operations as networks string them together: broadcast, transposed, joined, summed, lost.

The sizes of sequences, heads, nodes and edges are usual ones. What counts here is how operands lie
in memory beside each other, which shapes of one kind alone never show.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.measure.random_tensors import backward, lowered, random_size

_BATCHES = (4, 8, 16, 16, 32, 32, 48, 64, 64, 96, 128, 192, 256)
_LENGTHS = (
    49,
    64,
    64,
    100,
    128,
    128,
    196,
    197,
    256,
    256,
    384,
    512,
    577,
    784,
    1024,
    1500,
    2048,
    4096,
)
_WIDTHS = (32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 320, 384, 512, 512, 640, 768, 768, 1024)
_HEADS = (1, 2, 3, 4, 6, 8, 8, 12, 16)
_MOST_NUMEL = 1 << 27


def _sequences(rng: random.Random) -> Tensor:
    """Sequences of vectors, now and then with the other dimension last in memory."""
    length, width = rng.choice(_LENGTHS), rng.choice((*_WIDTHS, 1536, 2048, 3072, 4096))
    batch = max(1, min(rng.choice(_BATCHES), _MOST_NUMEL // (length * width)))
    if rng.random() < 0.25:
        return lowered(rng, torch.empty(batch, width, length)).transpose(1, 2)
    return lowered(rng, torch.empty(batch, length, width))


def _maps(rng: random.Random) -> Tensor:
    """Images or signals as convolutions leave them."""
    channels = rng.choice(_WIDTHS)
    side = rng.choice((7, 8, 14, 16, 28, 32, 40, 56, 64, 112, 128))
    batch = max(1, min(rng.choice(_BATCHES), _MOST_NUMEL // (channels * side * side)))
    style = rng.random()
    if style < 0.25:
        return lowered(rng, torch.empty(batch, channels, side * side))
    if style < 0.4:
        return lowered(rng, torch.empty(batch, side, side, channels)).permute(0, 3, 1, 2)
    return lowered(rng, torch.empty(batch, channels, side, side))


def _edges(rng: random.Random) -> Tensor:
    """Edges of a graph with some features each, by heads or not."""
    count = rng.choice((10_000, 50_000, 60_000, 100_000, 200_000, 320_000, 500_000, 800_000))
    width = rng.choice((16, 32, 64, 64, 96, 128, 192, 256, 512))
    count = min(count, _MOST_NUMEL // width)
    if rng.random() < 0.4:
        heads = rng.choice((2, 4, 8))
        return lowered(rng, torch.empty(count, heads, max(width // heads, 8)))
    return lowered(rng, torch.empty(count, width))


def _any(rng: random.Random) -> Tensor:
    return rng.choice((_sequences, _sequences, _maps, _maps, _edges))(rng)


_COMBINED: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.add,
    torch.add,
    torch.mul,
    torch.mul,
    torch.mul,
    torch.sub,
    torch.div,
    torch.maximum,
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: (a == b).to(a.dtype),
    lambda a, b: torch.lerp(a, b.to(a.dtype), 0.5) if a.shape == b.shape else a + b,
)


def broadcast(rng: random.Random) -> None:
    """Two tensors of which one is smaller, lies differently, or has another dtype."""
    left = _any(rng)
    style = rng.random()
    if style < 0.3:  # the same sizes, another layout
        dims = list(range(left.dim()))
        last, other = dims[-1], rng.choice(dims[1:-1] or dims[:1])
        dims[last], dims[other] = other, last
        right = torch.empty([left.shape[dim] for dim in dims], dtype=left.dtype).permute(dims)
    elif style < 0.7:  # one along some dimensions
        kept = rng.randrange(left.dim())
        shape = [
            size if dim == kept or rng.random() < 0.4 else 1 for dim, size in enumerate(left.shape)
        ]
        right = torch.empty(shape, dtype=left.dtype)
    else:
        right = torch.empty(left.shape, dtype=left.dtype)
    if rng.random() < 0.3:
        right = right.to(rng.choice((torch.float32, torch.float32, torch.bool, torch.int64)))
    op = rng.choice(_COMBINED)
    is_float = right.is_floating_point()
    made = op(left.requires_grad_(), right.requires_grad_(is_float) if is_float else right)
    if made.requires_grad:
        backward(made)


def flags(rng: random.Random) -> None:
    """Comparisons, masks, and numbers made of them."""
    tensor = _any(rng)
    mask = tensor > 0.5
    style = rng.randrange(5)
    if style == 0:
        mask.to(rng.choice((torch.int64, torch.float32, torch.bfloat16)))
    elif style == 1:
        mask.sum(rng.choice((-1, 1)), keepdim=rng.random() < 0.5)
    elif style == 2:
        backward(tensor.requires_grad_().masked_fill(mask, 0.0))
    elif style == 3:
        torch.logical_and(mask, mask.logical_not())
    else:
        torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))


def moved(rng: random.Random) -> None:
    """Copies of views: other orders of dimensions, parts, windows, rolled and repeated ones."""
    tensor = _any(rng)
    style = rng.randrange(9)
    if style == 0:
        tensor.transpose(1, -1).contiguous()
    elif style == 1 and tensor.shape[-1] % 8 == 0:
        tensor.reshape(*tensor.shape[:-1], 8, -1).transpose(1, -2).contiguous()
    elif style == 2:
        backward(
            tensor.requires_grad_()[..., :: rng.choice((1, 2))][..., : tensor.shape[-1] // 2] * 1.0
        )
    elif style == 3:
        torch.roll(tensor, rng.choice((1, 3, 4)), rng.choice((1, -1)))
    elif style == 4:
        backward(tensor.requires_grad_().repeat_interleave(2, dim=1))
    elif style == 5:
        torch.flip(tensor, (rng.choice((1, -1)),))
    elif style == 6:
        ends = (rng.choice((0, 1, 2, 8, 64)), rng.choice((0, 1, 2, 64)))
        backward(functional.pad(tensor.requires_grad_(), ends))
    elif style == 7:
        tensor.to(torch.float32 if tensor.dtype != torch.float32 else torch.bfloat16)
    else:
        half = tensor.shape[1] // 2
        first, second = tensor.requires_grad_()[:, :half], tensor[:, half : 2 * half]
        backward(first * torch.sigmoid(second))


def joined_parts(rng: random.Random) -> None:
    """Concatenated and stacked tensors: few or many, along any dimension, of one dtype or two."""
    first = _any(rng)
    along = rng.choice((1, -1, -1))
    count = rng.choice((2, 2, 2, 3, 3, 4, 5, 8, 13, 21))
    shape = list(first.shape)
    if rng.random() < 0.3:
        shape[along] = rng.choice((1, 2, 3, 4, 16, 63))
    while count * first.numel() // first.shape[along] * shape[along] > 1 << 28:
        shape[0] = max(1, shape[0] // 2)
        first = first[: shape[0]]
        if shape[0] == 1:
            break
    parts = [torch.empty(shape, dtype=first.dtype) for _ in range(count)]
    if rng.random() < 0.3:
        parts[-1] = parts[-1].float()
    if rng.random() < 0.3:
        parts[0] = torch.empty(shape[0], shape[-1], *shape[1:-1], dtype=first.dtype).movedim(1, -1)
    made = torch.cat if rng.random() < 0.75 else torch.stack
    backward(made([each.requires_grad_() for each in parts], along))


def summed(rng: random.Random) -> None:
    """Sums, means, extremes and running sums along dimensions of any length."""
    tensor = _any(rng)
    if rng.random() < 0.1:
        tensor = (tensor > 0.5).to(torch.int64)
    dims = rng.choice(
        ((-1,), (-1,), (-1,), (1,), (1,), (0,), (0, 1), tuple(range(2, tensor.dim())))
    )
    dims = dims or (-1,)
    style = rng.randrange(10)
    keep = rng.random() < 0.5
    is_float = tensor.is_floating_point()
    if style < 4 or not is_float:
        tensor.sum(dims, keepdim=keep)
    elif style == 4:
        backward(tensor.requires_grad_().mean(dims, keepdim=keep))
    elif style == 5:
        backward(tensor.requires_grad_().amax(dims, keepdim=keep))
    elif style == 6:
        rng.choice((torch.argmax, torch.argmin))(tensor, dims[0])
    elif style == 7:
        backward(tensor.requires_grad_().max(dims[0])[0])
    elif style == 8:
        rng.choice((torch.cumsum, torch.cumprod, torch.logcumsumexp))(tensor, dims[0])
    else:
        backward(tensor.requires_grad_().var(dims, keepdim=keep))


def loss(rng: random.Random) -> None:
    """What is averaged over all elements at the end of a network, and its gradient."""
    made = _any(rng).float().requires_grad_()
    wanted = torch.empty_like(made)
    style = rng.randrange(8)
    if style < 2:
        result = functional.mse_loss(made, wanted)
    elif style == 2:
        result = functional.l1_loss(made, wanted)
    elif style == 3:
        result = functional.smooth_l1_loss(made, wanted)
    elif style == 4:
        result = functional.binary_cross_entropy_with_logits(made, wanted)
    elif style == 5:
        result = functional.kl_div(made, wanted, reduction="batchmean")
    elif style == 6:
        result = functional.huber_loss(made, wanted)
    else:
        side = rng.choice((32, 56, 64, 80, 112, 128, 224, 256, 512))
        classes = rng.choice((2, 4, 10, 19, 20, 21, 80, 150))
        batch = max(1, min(rng.choice(_BATCHES), _MOST_NUMEL // (classes * side * side)))
        shape = (
            (side, side) if rng.random() < 0.7 else rng.choice(((side * side,), (16, side, side)))
        )
        logits = torch.empty(batch, classes, *shape, requires_grad=True)
        result = functional.cross_entropy(logits, torch.zeros(batch, *shape, dtype=torch.int64))
    result.backward()  # type: ignore[no-untyped-call]


def norm_of_rows(rng: random.Random) -> None:
    """Batch norm of a table of rows, and layer and RMS norm of sequences in any layout."""
    if rng.random() < 0.4:
        rows, columns = random_size(rng, 64, 500_000), rng.choice((*_WIDTHS, 2048))
        table = lowered(rng, torch.empty(min(rows, _MOST_NUMEL // columns), columns))
        backward(nn.BatchNorm1d(columns)(table.requires_grad_()))
        return
    tensor = _sequences(rng)
    if rng.random() < 0.7:
        tensor = tensor.float()
    width = tensor.shape[-1]
    make = rng.choice((nn.LayerNorm, nn.LayerNorm, nn.RMSNorm))
    backward(make(width)(tensor.requires_grad_()))


def nodes_and_edges(rng: random.Random) -> None:
    """Rows picked by index and added up by index, as in graphs, buckets and relative biases."""
    edges = _edges(rng)
    shape, dtype = edges.shape, edges.dtype
    nodes = max(16, shape[0] // rng.choice((2, 4, 8, 12, 16, 32)))
    index = torch.zeros(shape[0], dtype=torch.int64)
    table = torch.empty((nodes, *shape[1:]), dtype=dtype).requires_grad_()
    sent = edges.requires_grad_()
    style = rng.randrange(6)
    if style == 0:
        backward(table[index])
    elif style == 1:
        backward(torch.cat((table[index], table[index]), -1) * 1.0)
    elif style == 2:
        backward(torch.zeros_like(table).index_add(0, index, sent))
    elif style == 3:
        wide = index.view(-1, *(1,) * (edges.dim() - 1)).expand(shape)
        backward(torch.zeros_like(table).scatter_add(0, wide, sent))
    elif style == 4:
        backward(table.index_select(0, index))
    else:
        length = rng.choice((128, 256, 384, 512))
        heads = max(1, min(rng.choice((96, 192, 384, 576)), _MOST_NUMEL // length**2))
        scores = lowered(rng, torch.empty(heads, length, rng.choice((length, 2 * length, 512))))
        where = torch.zeros(length, length, dtype=torch.int64).expand(heads, -1, -1)
        backward(scores.requires_grad_().gather(-1, where))


def attention_between(rng: random.Random) -> None:
    """Attention of a few on many or of many on a few, of odd lengths and of unusual widths."""
    heads, width = rng.choice(_HEADS), rng.choice((16, 24, 32, 32, 40, 48, 64, 64, 64, 96, 128))
    length, other = rng.choice(_LENGTHS), rng.choice((*_LENGTHS, 16, 32, 77))
    if rng.random() < 0.4:
        length = other = random_size(rng, 50, 2048)
    batch = max(1, min(rng.choice(_BATCHES), (1 << 25) // (max(length, other) * heads * width)))
    made = [
        lowered(rng, torch.empty(batch, each, heads, width)).transpose(1, 2)
        for each in (length, other, other)
    ]
    q, k, v = (each.to(made[0].dtype).requires_grad_() for each in made)
    style = rng.random()
    mask = None
    if style > 0.7:
        rows = rng.choice(((1, 1), (batch, 1), (batch, heads)))
        mask = torch.empty(*rows, length, other, dtype=q.dtype)
    rate = 0.1 if rng.random() < 0.3 else 0.0
    causal = style < 0.3 and length == other
    backward(
        functional.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate, is_causal=causal)
    )


def usual_linear(rng: random.Random) -> None:
    """Products as layers of usual widths give them, over few rows or a million."""
    width = rng.choice((*_WIDTHS, 1280, 1536, 2048, 3072, 4096))
    made = rng.choice(
        (width, width, width, 2 * width, 3 * width, 4 * width, width // 4, 1, 10, 1000)
    )
    rows = rng.choice(_BATCHES) * rng.choice((1, *_LENGTHS, 8192))
    rows = max(1, min(rows, (1 << 28) // max(width, made)))
    table = torch.empty(rows, width)
    if rng.random() < 0.3:
        length = rng.choice((16, 32, 64))
        table = torch.empty(-(-rows // length), width, length).transpose(1, 2)
    backward(nn.Linear(width, made, bias=rng.random() < 0.6)(table.requires_grad_()))


def enlarged(rng: random.Random) -> None:
    """Coarse features as fine ones: interpolated by large factors, or from a single value."""
    channels = rng.choice((*_WIDTHS, 19, 21, 150))
    side = rng.choice((1, 1, 2, 3, 4, 6, 7, 8, 14, 16, 28, 32, 56, 64, 128))
    factor = rng.choice((2, 2, 2, 4, 4, 8, 16, 32, 40))
    made = min(side * factor, 512)
    batch = max(1, min(rng.choice(_BATCHES), _MOST_NUMEL // (channels * made * made)))
    image = lowered(rng, torch.empty(batch, channels, side, side)).requires_grad_()
    mode = rng.choice(("nearest", "bilinear", "bilinear", "bilinear", "bicubic"))
    corners = None if mode == "nearest" else rng.random() < 0.3
    backward(functional.interpolate(image, size=(made, made), mode=mode, align_corners=corners))


def usual_pooling(rng: random.Random) -> None:
    """Pooling of images and volumes as networks have it."""
    if rng.random() < 0.5:
        frames, side = rng.choice(
            ((8, 112), (16, 56), (8, 56), (8, 28), (4, 14), (32, 64), (64, 64))
        )
        channels = rng.choice((24, 48, 64, 96, 128, 192, 256, 480))
        batch = max(
            1, min(rng.choice((2, 4, 8, 16, 32)), (1 << 26) // (channels * frames * side**2))
        )
        volume = lowered(rng, torch.empty(batch, channels, frames, side, side)).requires_grad_()
        window, stride = rng.choice(
            (((1, 3, 3), (1, 2, 2)), ((3, 3, 3), (2, 2, 2)), ((2, 2, 2), (2, 2, 2)), ((3, 3, 3), 1))
        )
        padding = tuple(each // 2 if each == 3 else 0 for each in window)
        backward(functional.max_pool3d(volume, window, stride, padding))
        return
    image = _maps(rng)
    if image.dim() == 4:
        pool = rng.choice((functional.avg_pool2d, functional.max_pool2d))
        backward(pool(image.requires_grad_(), *rng.choice(((2, 2), (3, 2), (3, 1)))))
        return
    backward(functional.adaptive_avg_pool1d(image.requires_grad_(), rng.choice((1, 1, 4, 8))))
