"""Random convolutions, as neighbours of those that networks have."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from paceline.measure.random_tensors import backward, random_image, random_side, random_size

_MAX_NUMEL = 1 << 30
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


def usual_convolution(rng: random.Random) -> None:
    """As networks have them: round channel counts, usual windows, images that were halved."""
    width = rng.choice((8, 8, 16, 16, 32, 32, 64))
    channels = width * random_size(rng, 1, max(1, 1024 // width))
    filters = rng.choice(
        (channels, channels, channels * 2, channels * 4, width * random_size(rng, 1, 24))
    )
    if rng.random() < 0.3:
        channels, filters = filters, channels
    side, stride = rng.choice(_WINDOWS)
    groups = 1
    style = rng.random()
    if style < 0.05:
        channels, filters = 3, rng.choice((16, 24, 32, 48, 64, 64, 96, 128, 768))
        side, stride = rng.choice(((3, 1), (3, 2), (7, 2), (4, 4), (11, 4), (16, 16)))
    elif style < 0.25:
        side, groups, filters = rng.choice((3, 3, 3, 5, 5, 7, 7, 9, 11)), channels, channels
        stride = rng.choice((1, 1, 1, 2))
    elif style < 0.4:
        # ResNeXt's groups and RegNet's: as many as it takes, of a given width.
        in_group = rng.choice((4, 8, 16, 24, 32, 48, 64, 112))
        groups = max(2, round(channels / in_group))
        channels, filters, side = groups * in_group, groups * in_group, 3
    extent = max(side, random_side(rng))
    if channels == 3:
        extent = rng.choice((224, 224, 256, 299, 384, 192, 128, 64, 32))
    batch = rng.choice((2, 4, 8, 16, 32, 32, 64, 64, 64, 128, 128, 256, 256, 512))
    batch = max(1, min(batch, (1 << 29) // (max(channels, filters) * extent * extent)))
    image = torch.empty(batch, channels, extent, extent)
    if rng.random() < 0.35:
        image = image.contiguous(memory_format=torch.channels_last)
    window, padding = (side, side), (side // 2, side // 2)
    if side == stride:
        padding = (0, 0)
    elif stride == 1 and side > 1 and groups == 1 and rng.random() < 0.15:  # Inception's pairs
        window, padding = rng.choice((((1, side), (0, side // 2)), ((side, 1), (side // 2, 0))))
    module = nn.Conv2d(
        channels,
        filters,
        window,
        stride=stride,
        padding=padding,
        groups=groups,
        bias=rng.random() < 0.3,
    )
    backward(_in_format(module, image.requires_grad_())(image))


def convolution(rng: random.Random) -> None:
    """Of any channel counts, windows, strides, dilations and groups."""
    style = rng.random()
    channels = 3 if style < 0.04 else random_size(rng, 4, 2048)
    filters = random_size(rng, 8, 2048)
    side = rng.choice((1, 1, 1, 1, 3, 3, 3, 3, 5, 7, 2, 4, 11, 9))
    groups = 1
    if 0.6 < style < 0.82:
        channels = random_size(rng, 16, 1536)
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
    image = random_image(rng, channels, numel=1 << 27).requires_grad_()
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
        backward(output)


def signal_convolution(rng: random.Random) -> None:
    """Of sound and of sequences: over one dimension, dilated, grouped or transposed, too."""
    channels, filters = (_channels(rng) for _ in range(2))
    side = rng.choice((1, 1, 2, 3, 3, 3, 5, 7, 9, 10, 15, 31))
    stride = rng.choice((1, 1, 1, 1, 2, 2, min(side, 5)))
    dilation = 2 ** rng.randint(0, 9) if side > 1 and rng.random() < 0.3 else 1
    groups = 1
    if rng.random() < 0.2:
        groups = channels if rng.random() < 0.6 else rng.choice((2, 4, 8, 16))
        channels = -(-channels // groups) * groups
        filters = channels
    length = random_size(rng, max(64, dilation * side), 100_000)
    batch = max(1, min(random_size(rng, 1, 256), (1 << 28) // (max(channels, filters) * length)))
    signal = torch.empty(batch, channels, length, requires_grad=channels > 1)
    is_transposed = groups == 1 and dilation == 1 and side > 1 and rng.random() < 0.1
    make = nn.ConvTranspose1d if is_transposed else nn.Conv1d
    line = make(
        channels,
        filters,
        side,
        stride=stride,
        padding=dilation * (side - 1) // 2 if rng.random() < 0.8 else 0,
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
    )
    backward(line(signal))


def volume_convolution(rng: random.Random) -> None:
    """Of video and of medical images: over three dimensions."""
    channels, filters = (_channels(rng) for _ in range(2))
    side, stride = rng.choice((1, 3, 3, 3, 3, 5, 7)), rng.choice((1, 1, 1, 2))
    extent, frames = rng.choice(
        (
            (7, 4),
            (14, 8),
            (28, 8),
            (56, 16),
            (112, 16),
            (8, 8),
            (16, 16),
            (32, 32),
            (64, 64),
            (96, 96),
        )
    )
    most = (1 << 27) // (max(channels, filters) * frames * extent**2)
    batch = max(1, min(random_size(rng, 1, 64), most))
    video = torch.empty(batch, channels, frames, extent, extent, requires_grad=channels > 3)
    if rng.random() < 0.15:
        backward(nn.ConvTranspose3d(channels, filters, 2, stride=2)(video))
        return
    window = rng.choice(((side, side, side), (side, side, side), (1, side, side), (side, 1, 1)))
    padding = (window[0] // 2, window[1] // 2, window[2] // 2)
    bias = rng.random() < 0.3
    module = nn.Conv3d(channels, filters, window, stride=stride, padding=padding, bias=bias)
    backward(module(video))


def dilated_convolution(rng: random.Random) -> None:
    """Of images, with gaps in the window, as in segmentation."""
    channels, filters = (_channels(rng) for _ in range(2))
    dilation = rng.choice((2, 2, 2, 4, 4, 6, 8, 12, 18, 24))
    image = random_image(rng, channels, numel=1 << 27).requires_grad_()
    module = nn.Conv2d(
        channels, filters, 3, padding=dilation, dilation=dilation, bias=rng.random() < 0.3
    )
    backward(_in_format(module, image)(image))


def transposed_convolution(rng: random.Random) -> None:
    """Of images that grow, as in generators and U-Nets."""
    channels, filters = (_channels(rng) for _ in range(2))
    side, stride, padding, extra = rng.choice(
        ((4, 2, 1, 0), (4, 2, 1, 0), (2, 2, 0, 0), (3, 2, 1, 1), (4, 1, 0, 0), (3, 1, 1, 0))
    )
    extent = rng.choice((1, 4, 7, 8, 14, 16, 28, 32, 56, 64, 128))
    most = (1 << 26) // (max(channels, filters) * extent**2)
    batch = max(1, min(random_size(rng, 1, 512), most))
    image = torch.empty(batch, channels, extent, extent)
    if rng.random() < 0.3:
        image = image.contiguous(memory_format=torch.channels_last)
    module = nn.ConvTranspose2d(
        channels,
        filters,
        side,
        stride=stride,
        padding=padding,
        output_padding=extra,
        bias=rng.random() < 0.7,
    )
    backward(_in_format(module, image.requires_grad_())(image))


def _channels(rng: random.Random) -> int:
    """Mostly round numbers, now and then the few of an input or an output."""
    if rng.random() < 0.08:
        return rng.choice((1, 2, 3, 4))
    return rng.choice((8, 16, 16, 32, 32)) * random_size(rng, 1, 32)


def _in_format(module: nn.Module, image: Tensor) -> nn.Module:
    is_last = image.is_contiguous(memory_format=torch.channels_last) and image.shape[1] > 1
    for name, own in list(module.named_parameters()) if is_last else ():
        if own.dim() == 4:  # module.to() wants to swap tensors, which often fails among fakes
            last = torch.empty_like(own, memory_format=torch.channels_last)
            setattr(module, name, nn.Parameter(last))
    return module
