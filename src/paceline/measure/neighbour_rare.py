"""Random operators that few networks have, so that none of their kinds is unknown."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.measure.random_tensors import backward, lowered, random_size

_SIDES = (8, 14, 16, 28, 32, 56, 64, 112, 128, 224)
_MOST_NUMEL = 1 << 26


def rare_sampling(rng: random.Random) -> None:
    """Images sampled at given places, resized with a filter, or put back where a maximum was."""
    channels, side = rng.choice((1, 3, 16, 32, 64, 128, 256)), rng.choice(_SIDES)
    batch = max(1, min(rng.choice((4, 8, 16, 32, 64)), _MOST_NUMEL // (channels * side**2)))
    image = torch.empty(batch, channels, side, side, requires_grad=True)
    style = rng.randrange(10)
    if style == 0:
        made = rng.choice(_SIDES)
        grid = torch.empty(batch, made, made, 2, requires_grad=rng.random() < 0.7)
        mode = rng.choice(("bilinear", "bilinear", "nearest"))
        backward(functional.grid_sample(image, grid, mode=mode, align_corners=False))
    elif style == 1:
        volume = torch.empty(max(1, batch // 4), channels, side // 4, side // 4, side // 4)
        grid = torch.empty(volume.shape[0], side // 4, side // 4, side // 4, 3)
        places = grid.requires_grad_()
        backward(functional.grid_sample(volume.requires_grad_(), places, align_corners=False))
    elif style == 2:
        mode, made = rng.choice(("bilinear", "bicubic")), rng.choice(_SIDES)
        backward(functional.interpolate(image, size=(made, made), mode=mode, antialias=True))
    elif style == 3:
        backward(functional.interpolate(image, scale_factor=2, mode="nearest-exact"))
    elif style == 4:
        found, places = functional.max_pool2d(image, 2, 2, return_indices=True)
        backward(functional.max_unpool2d(found, places, [2, 2], output_size=image.shape[-2:]))
    elif style == 5:
        padding = rng.choice(((1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)))
        backward(functional.pad(image, padding, mode=rng.choice(("reflect", "replicate"))))
    elif style == 6:
        factor = rng.choice((2, 2, 4))
        if channels % factor**2 == 0 and (side % factor or rng.random() < 0.5):
            backward(functional.pixel_shuffle(image, factor))
        elif side % factor == 0:
            backward(functional.pixel_unshuffle(image, factor))
    elif style == 7:
        window = rng.choice(((3, 1, 1), (2, 0, 2), (7, 3, 4), (4, 0, 4)))
        few = image[: max(1, batch // 8)]
        backward(functional.unfold(few, window[0], padding=window[1], stride=window[2]))
    else:
        _resized_volume(rng)


def _resized_volume(rng: random.Random) -> None:
    """A volume made finer or coarser, as decoders over videos and scans do."""
    channels = rng.choice((1, 3, 8, 16, 24, 32, 48, 64, 96, 128, 256))
    frames, height, width = (rng.choice((4, 6, 8, 10, 12, 16, 20, 24, 32, 44, 48)) for _ in "dhw")
    if rng.random() < 0.5:
        width = height
    numel = channels * frames * height * width * 8
    batch = max(1, min(rng.choice((1, 2, 2, 4, 8, 16)), _MOST_NUMEL // numel))
    volume = lowered(rng, torch.empty(batch, channels, frames, height, width)).requires_grad_()
    scale = rng.choice(((2, 2, 2), (2, 2, 2), (1, 2, 2), (4, 4, 4)))
    made = [size * each for size, each in zip(volume.shape[2:], scale, strict=True)]
    style = rng.random()
    if style < 0.6:
        corners = rng.random() < 0.4
        backward(functional.interpolate(volume, size=made, mode="trilinear", align_corners=corners))
    elif style < 0.8:
        backward(functional.interpolate(volume, size=made, mode="nearest"))
    elif style < 0.9:
        backward(functional.avg_pool3d(volume, 2))
    else:
        backward(functional.adaptive_avg_pool3d(volume, 1))


_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.logsigmoid,
    functional.rrelu,
    functional.hardshrink,
    functional.softshrink,
    functional.celu,
    lambda values: functional.threshold(values, 0.1, 0.0),
    lambda values: torch.floor_divide(values, 2.0) + values,
    lambda values: torch.linalg.cross(values[..., :3], values[..., -3:]),
)


def rare_activation(rng: random.Random) -> None:
    """Activations with a weight per channel, or of a kind of their own."""
    channels, side = rng.choice((16, 32, 56, 64, 128, 256, 512)), rng.choice(_SIDES)
    batch = max(1, min(rng.choice((4, 8, 16, 32, 64)), _MOST_NUMEL // (channels * side**2)))
    values = lowered(rng, torch.empty(batch, channels, side, side)).requires_grad_()
    if rng.random() < 0.5:
        backward(nn.PReLU(rng.choice((1, channels)))(values))
        return
    backward(rng.choice(_ACTIVATIONS)(values))


def rare_loss(rng: random.Random) -> None:
    """Losses of two classes and of ranks."""
    shape = rng.choice(((64, 1, 224, 224), (4096, 80), (65_536,), (16, 4, 128, 128), (256, 1000)))
    made = torch.empty(shape).requires_grad_()
    wanted = torch.empty(shape)
    with torch.autocast("cpu", enabled=False):
        result = rng.choice(
            (
                lambda: functional.binary_cross_entropy(made.sigmoid(), wanted),
                lambda: functional.soft_margin_loss(made, wanted),
                lambda: functional.poisson_nll_loss(made, wanted),
                lambda: functional.hinge_embedding_loss(made, wanted),
            )
        )()
    result.backward()  # type: ignore[no-untyped-call]


def rare_text_loss(rng: random.Random) -> None:
    """The CTC loss of letters, syllables or words in sounds or in images of lines of text."""
    classes = rng.choice((28, 29, 32, 48, 64, 80, 96, 128, 256, 512, 1024, 2000, 5000))
    steps = rng.choice((24, 32, 50, 64, 80, 100, 128, 160, 200, 250, 320, 400, 500, 800, 1200))
    batch = max(1, min(random_size(rng, 4, 512), _MOST_NUMEL // (steps * classes)))
    longest = max(2, min(random_size(rng, 4, 256), steps // 2))
    heard = torch.empty(steps, batch, classes, requires_grad=True)
    texts = torch.ones(batch, longest, dtype=torch.int64)
    lengths = [torch.full((batch,), size) for size in (steps, longest)]
    backward(functional.ctc_loss(heard, texts, lengths[0], lengths[1], reduction="none"))


def rare_reduction(rng: random.Random) -> None:
    """Medians, counts, extremes that run along a dimension, draws from a distribution."""
    rows, columns = random_size(rng, 16, 16_384), random_size(rng, 16, 4096)
    table = torch.empty(rows, columns)
    dim = rng.choice((0, 1))
    style = rng.randrange(10)
    if style == 0:
        backward(torch.median(table.requires_grad_(), dim)[0])
    elif style == 1:
        backward(torch.kthvalue(table.requires_grad_(), 3, dim)[0])
    elif style == 2:
        backward(torch.cummax(table.requires_grad_(), dim)[0])
    elif style == 3:
        spread, mean = torch.std_mean(table.requires_grad_(), dim)
        backward(spread + mean)
    elif style == 4:
        torch.aminmax(table, dim=dim)
    elif style == 5:
        torch.multinomial(table, rng.choice((1, 8, 15)), replacement=True)
    elif style == 6:
        torch.count_nonzero(table, dim)
    elif style == 7:
        torch.histc(table, bins=rng.choice((64, 256)))
    elif style == 8:
        torch.searchsorted(torch.empty(columns), table)
    else:
        torch.bucketize(table, torch.empty(rng.choice((16, 64, 256))))


def rare_order(rng: random.Random) -> None:
    """The nearest and the best: the first few of each row, all in order, and running sums."""
    columns = rng.choice((64, 80, 128, 256, 512, 900, 1024, 1280, 2048, 4096, 8400, 16_384, 32_768))
    rows = max(1, min(random_size(rng, 16, 65_536), _MOST_NUMEL // columns))
    table = lowered(rng, torch.empty(rows, columns)).requires_grad_()
    if rng.random() < 0.4:  # points or boxes of each sample
        batch = rng.choice((8, 16, 24, 32))
        table = torch.empty(batch, max(1, rows // batch), columns).requires_grad_()
    style = rng.randrange(6)
    if style < 3:
        count = min(columns, rng.choice((1, 2, 4, 8, 10, 16, 20, 32, 40, 64, 100, 300)))
        backward(torch.topk(table, count, largest=rng.random() < 0.6)[0])
    elif style == 3:
        backward(torch.sort(table, dim=rng.choice((-1, -1, 0)))[0])
    elif style == 4:
        torch.argsort(table, descending=rng.random() < 0.5)
    else:
        backward(torch.cumsum(table, rng.choice((-1, -1, 0))))


def rare_indexing(rng: random.Random) -> None:
    """Rows overwritten, filled and reduced by index."""
    width = rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 256))
    rows = min(random_size(rng, 256, 2_000_000), _MOST_NUMEL // width)
    nodes = max(16, rows // rng.choice((2, 4, 16, 64)))
    index = torch.zeros(rows, dtype=torch.int64)
    table, sent = torch.empty(nodes, width), torch.empty(rows, width).requires_grad_()
    style = rng.randrange(7)
    if style == 0:
        wide = index.unsqueeze(1).expand(-1, width)
        how = rng.choice(("sum", "mean", "amax"))
        backward(table.scatter_reduce(0, wide, sent, how, include_self=rng.random() < 0.5))
    elif style == 1:
        backward(table.index_reduce(0, index, sent, rng.choice(("mean", "amax"))))
    elif style == 2:
        backward(torch.empty(rows, width).index_copy(0, index, sent))
    elif style == 3:
        backward(table.requires_grad_().index_fill(0, index[: nodes // 2], 0.0))
    elif style == 4:
        backward(torch.take(table.requires_grad_(), index))
    elif style == 5:
        backward(table.requires_grad_().index_put((index,), sent, accumulate=rng.random() < 0.7))
    else:  # points of each sample, with features along the last dimension
        batch, points = rng.choice((8, 16, 24, 32, 64)), rng.choice((256, 512, 1024, 1280, 2048))
        count = points * rng.choice((1, 4, 16, 20, 32))
        batch = max(1, min(batch, _MOST_NUMEL // (width * count)))
        held = lowered(rng, torch.empty(batch, width, points)).requires_grad_()
        where = torch.zeros(batch, 1, count, dtype=torch.int64).expand(-1, width, -1)
        backward(held.gather(2, where))
