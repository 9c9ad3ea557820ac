"""Random convolutions with the sizes that networks over sound, volumes and fine images have.

Widths are round, lengths and sides are what strides leave of usual ones, and batches are usual:
evenly drawn sizes hardly ever meet these, for which cuDNN has its own algorithms.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from paceline.measure.random_tensors import backward, random_size

_WIDTHS = (16, 24, 32, 32, 48, 64, 64, 64, 80, 96, 128, 128, 128, 192, 256, 256, 320, 384, 512)
_WIDE = (512, 640, 768, 1024, 1536, 2048)
_BATCHES = (1, 2, 4, 8, 8, 16, 16, 32, 32, 64, 64, 96, 128, 192, 256)
_LENGTHS = (64, 100, 128, 200, 250, 256, 400, 500, 512, 768, 1000, 1024, 1500, 2048, 3000, 4000)
_LONG = (4096, 8000, 8192, 16_000, 16_384, 24_000, 32_000, 32_768, 44_100, 48_000, 65_536)
_MOST_NUMEL = 1 << 28


def usual_signal(rng: random.Random) -> None:
    """Of sound, text and time series: residual, dilated, strided, depthwise and transposed."""
    before, after = _widths(rng)
    length = rng.choice(_LENGTHS if rng.random() < 0.65 else _LONG)
    batch = _batch(rng, max(before, after) * length)
    style = rng.random()
    side, stride, padding, dilation, groups = 1, 1, 0, 1, 1
    is_transposed = False
    if style < 0.2:  # a product along the signal
        before, after = rng.choice(((before, after), (before, 2 * before), (before, before)))
    elif style < 0.4:  # a residual block, or the first layer
        side = rng.choice((3, 3, 3, 5, 5, 7, 9, 11, 11, 15, 19, 25))
        padding = side // 2 if rng.random() < 0.8 else 0
        before = rng.choice((before,) * 6 + (1, 2, 4, 12))
        before, after = rng.choice(((before, after),) * 7 + ((before, rng.choice((1, 2, 3, 5))),))
    elif style < 0.62:  # gaps that double from block to block; padded here, or by the network
        side, dilation = rng.choice((2, 3, 3, 3, 5, 5, 7)), 2 ** rng.randint(0, 9)
        reach = dilation * (side - 1)
        before = after = rng.choice((before, before, after))
        after *= rng.choice((1, 1, 2))
        if rng.random() < 0.5:
            padding = rng.choice((reach, reach // 2))
        else:
            length += reach
    elif style < 0.76:  # shorter step by step
        side, stride = rng.choice(
            ((3, 2), (4, 2), (8, 4), (10, 5), (16, 8), (15, 4), (5, 2), (2, 2))
        )
        padding = rng.choice((0, side // 2, (side - stride + 1) // 2))
        before = rng.choice((before, before, 1, 2))
        length = rng.choice(_LONG)
        batch = _batch(rng, max(before, after // stride) * length)
    elif style < 0.88:  # each channel by itself, or some together
        side = rng.choice((3, 4, 5, 7, 9, 15, 31, 31, 128))
        groups = before if rng.random() < 0.75 else rng.choice((2, 4, 8, 16))
        before = after = -(-before // groups) * groups
        padding = side - 1 if side == 4 else side // 2
    else:  # longer step by step
        is_transposed = True
        side, stride = rng.choice(((4, 2), (8, 4), (16, 8), (3, 2), (2, 2), (10, 5), (20, 10)))
        padding = (side - stride) // 2
        after = rng.choice((after, before // 2, 1, 2))
        length = max(16, length // stride)
    signal = torch.empty(batch, before, length)
    if rng.random() < 0.2:  # as a network leaves it that also has layers over the last dimension
        signal = torch.empty(batch, length, before).transpose(1, 2)
    make = nn.ConvTranspose1d if is_transposed else nn.Conv1d
    line = make(
        before,
        after,
        side,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
    )
    backward(line(signal.requires_grad_(before > 2)))


_VOLUMES = (
    # frames, height and width of videos ...
    *((8, 56, 56), (8, 28, 28), (4, 14, 14), (2, 7, 7), (16, 56, 56), (16, 112, 112)),
    *((8, 112, 112), (4, 28, 28), (16, 28, 28), (12, 64, 64), (32, 56, 56), (8, 14, 14)),
    # ... and depths, heights and widths of scans
    *((64, 64, 64), (32, 32, 32), (16, 16, 16), (8, 8, 8), (96, 96, 96), (48, 48, 48)),
    *((24, 24, 24), (128, 128, 128), (64, 128, 128), (32, 64, 64), (16, 32, 32), (16, 64, 64)),
    *((32, 128, 128), (16, 80, 80), (48, 96, 96), (24, 160, 160), (32, 128, 160), (16, 64, 80)),
)


def _extents(rng: random.Random) -> tuple[int, int, int]:
    """Of a volume: a usual one, one that was halved, or any."""
    if rng.random() < 0.65:
        return rng.choice(_VOLUMES)
    halvings = rng.choice((1, 2, 2, 4, 4, 8))
    frames = rng.choice((8, 10, 16, 20, 24, 32, 40, 48, 64, 96, 128))
    height, width = (
        rng.choice((40, 64, 72, 80, 96, 112, 120, 128, 144, 160, 176, 192, 224)) for _ in range(2)
    )
    if rng.random() < 0.5:
        width = height
    kept = halvings if rng.random() < 0.5 else 1  # many networks over videos keep their frames
    return max(1, frames // kept), max(4, height // halvings), max(4, width // halvings)


def short_signal(rng: random.Random) -> None:
    """Letters of words, days of weeks, windows of sensors: very many short signals."""
    before, after = (rng.choice((8, 16, 24, 30, 32, 48, 50, 56, 64, 100, 128, 256)) for _ in "io")
    length = rng.choice((6, 8, 10, 12, 16, 20, 24, 30, 32, 48, 60))
    side = rng.choice((1, 2, 3, 3, 3, 4, 5, 7))
    batch = min(random_size(rng, 1000, 300_000), _MOST_NUMEL // (max(before, after) * length))
    signal = torch.empty(batch, before, length)
    if rng.random() < 0.5:  # as an embedding leaves them
        signal = torch.empty(batch, length, before).transpose(1, 2)
    backward(nn.Conv1d(before, after, side, padding=side // 2)(signal.requires_grad_()))


def usual_volume(rng: random.Random) -> None:
    """Of videos and scans, whole or first over images and then over time."""
    before, after = _widths(rng, most=512)
    extents = _extents(rng)
    numel = extents[0] * extents[1] * extents[2]
    style = rng.random()
    window, stride, padding, dilation, groups = (3, 3, 3), (1, 1, 1), (1, 1, 1), 1, 1
    if style < 0.12:
        batch = _batch(rng, max(before, after) * numel * 2, most=1 << 27)
        _grown(rng, torch.empty(batch, before, *extents, requires_grad=True), after)
        return
    if style < 0.24:
        window, padding = rng.choice((((1, 3, 3), (0, 1, 1)), ((1, 7, 7), (0, 3, 3))))
        stride = rng.choice(((1, 1, 1), (1, 1, 1), (1, 2, 2)))
    elif style < 0.34:
        window, padding = rng.choice(
            (((3, 1, 1), (1, 0, 0)), ((3, 1, 1), (1, 0, 0)), ((7, 1, 1), (3, 0, 0)))
        )
        stride = rng.choice(((1, 1, 1), (1, 1, 1), (2, 1, 1)))
    elif style < 0.46:
        window, padding = (1, 1, 1), (0, 0, 0)
        stride = rng.choice(((1, 1, 1), (1, 1, 1), (2, 2, 2)))
        after = rng.choice((after,) * 3 + (1, 2, 3, 4, 5, 14, 105))
    elif style < 0.56:
        stride = rng.choice(((2, 2, 2), (1, 2, 2), (2, 1, 1)))
    elif style < 0.68:  # the first layer
        before, window = rng.choice(
            ((1, (7, 7, 7)), (3, (3, 7, 7)), (3, (1, 7, 7)), (1, (3, 3, 3)), (4, (3, 3, 3)))
        )
        padding = (window[0] // 2, window[1] // 2, window[2] // 2)
        stride = rng.choice(((1, 2, 2), (2, 2, 2), (1, 1, 1)))
        after = rng.choice((8, 16, 24, 32, 32, 48, 64, 64, 64))
    elif style < 0.72:
        dilation, padding = 2, (2, 2, 2)
    elif style < 0.8:  # each channel by itself
        groups = after = before
        window, padding = rng.choice(
            (((3, 3, 3), (1, 1, 1)), ((5, 1, 1), (2, 0, 0)), ((1, 3, 3), (0, 1, 1)))
        )
        stride = rng.choice(((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 2)))
    elif style < 0.84:  # patches of a transformer
        before, window = rng.choice(((3, (2, 16, 16)), (1, (4, 4, 4)), (3, (2, 4, 4))))
        stride, padding, after = window, (0, 0, 0), rng.choice((48, 96, 192, 384, 768))
    module = nn.Conv3d(
        before,
        after,
        window,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.4,
    )
    batch = _batch(rng, max(before, after // stride[0] ** 3) * numel, most=1 << 27)
    backward(module(torch.empty(batch, before, *extents, requires_grad=before > 4)))


def _grown(rng: random.Random, volume: Tensor, channels: int) -> None:
    """A volume made finer, as in the decoder of a U-Net."""
    side, stride, padding, extra = rng.choice(
        ((2, 2, 0, 0), (2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1))
    )
    only = rng.random() < 0.2  # height and width, not the frames
    sides, strides, paddings, extras = (
        (each if not only else fixed, each, each)
        for each, fixed in ((side, 1), (stride, 1), (padding, 0), (extra, 0))
    )
    module = nn.ConvTranspose3d(
        volume.shape[1],
        channels,
        sides,
        stride=strides,
        padding=paddings,
        output_padding=extras,
        bias=rng.random() < 0.5,
    )
    backward(module(volume))


def usual_enlarging(rng: random.Random) -> None:
    """Of images that grow, as in generators, decoders and U-Nets, and of those that shrink so."""
    before, after = _widths(rng)
    side, stride, padding, extra = rng.choice(
        ((4, 2, 1, 0), (4, 2, 1, 0), (4, 2, 1, 0), (2, 2, 0, 0), (2, 2, 0, 0), (3, 2, 1, 1))
    )
    extent = rng.choice((4, 7, 8, 8, 14, 16, 16, 28, 32, 32, 64, 64, 128))
    if rng.random() < 0.1:
        before, side, stride, padding, extra, extent = rng.choice((100, 128, 256)), 4, 1, 0, 0, 1
    after = 3 if rng.random() < 0.08 else rng.choice((after, max(8, before // 2)))
    batch = _batch(rng, max(before, after) * (extent * stride) ** 2)
    if rng.random() < 0.4 and extra == 0 and extent > 1:
        image = torch.empty(batch, after, extent * stride, extent * stride)
        module: nn.Module = nn.Conv2d(
            after, before, side, stride=stride, padding=padding, bias=False
        )
    else:
        image = torch.empty(batch, before, extent, extent)
        module = nn.ConvTranspose2d(
            before,
            after,
            side,
            stride=stride,
            padding=padding,
            output_padding=extra,
            bias=rng.random() < 0.5,
        )
    backward(module(image.requires_grad_(image.shape[1] > 3)))


def usual_image(rng: random.Random) -> None:
    """Of fine images, which segmentation, restoration and detection keep large, dilated or not."""
    before, after = _widths(rng)
    extent = rng.choice((28, 32, 40, 48, 56, 64, 64, 80, 96, 128, 128, 160, 192, 256, 256))
    other = extent if rng.random() < 0.8 else rng.choice((32, 64, 100, 200, 256))
    side, dilation, stride = rng.choice((1, 1, 3, 3, 3, 3, 3, 5, 7)), 1, 1
    if side == 3 and rng.random() < 0.35:
        dilation = rng.choice((2, 2, 4, 6, 8, 12, 18, 24))
    elif side > 1 and rng.random() < 0.2:
        stride = 2
    if rng.random() < 0.12:
        after = rng.choice((1, 2, 3, 4, 12, 19, 20, 21, 80, 150))
    elif rng.random() < 0.08:
        before = rng.choice((1, 3, 3, 4, 6))
    groups = 1
    if before > 8 and rng.random() < 0.12:
        groups, after = before, before
    batch = _batch(rng, max(before, after) * extent * other)
    image = torch.empty(batch, before, extent, other, requires_grad=before > 4)
    module = nn.Conv2d(
        before,
        after,
        side,
        stride=stride,
        padding=dilation * (side // 2),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.6,
    )
    backward(module(image))


def _widths(rng: random.Random, *, most: int = 2048) -> tuple[int, int]:
    before = rng.choice(_WIDTHS if rng.random() < 0.85 else _WIDE)
    after = rng.choice((before, before, before, 2 * before, before // 2, rng.choice(_WIDTHS)))
    return min(before, most), min(after, most)


def _batch(rng: random.Random, numel: int, *, most: int = _MOST_NUMEL) -> int:
    return max(1, min(rng.choice(_BATCHES), most // numel))
