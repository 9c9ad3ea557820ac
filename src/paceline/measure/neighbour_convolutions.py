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


def other_convolution(rng: random.Random) -> None:
    """Of sound and of video: over one dimension or three."""
    channels, filters = (8 * random_size(rng, 1, 96) for _ in range(2))
    side, batch = rng.choice((1, 3, 3, 5, 7)), random_size(rng, 1, 64)
    stride = rng.choice((1, 1, 2))
    if rng.random() < 0.5:
        groups = channels if rng.random() < 0.2 else 1
        signal = torch.empty(batch, channels, random_size(rng, 64, 8192), requires_grad=True)
        line = nn.Conv1d(
            channels,
            channels if groups > 1 else filters,
            side,
            stride=stride,
            padding=side // 2,
            groups=groups,
        )
        backward(line(signal))
        return
    extent, frames = rng.choice((7, 14, 28, 56)), rng.choice((4, 8, 16, 32))
    batch = max(1, min(batch, (1 << 26) // (max(channels, filters) * frames * extent**2)))
    video = torch.empty(batch, channels, frames, extent, extent, requires_grad=True)
    window = rng.choice(((side, side, side), (1, side, side), (side, 1, 1)))
    padding = (window[0] // 2, window[1] // 2, window[2] // 2)
    backward(nn.Conv3d(channels, filters, window, stride=stride, padding=padding)(video))


def _in_format(module: nn.Module, image: Tensor) -> nn.Module:
    is_last = image.is_contiguous(memory_format=torch.channels_last) and image.shape[1] > 1
    for name, own in list(module.named_parameters()) if is_last else ():
        if own.dim() == 4:  # module.to() wants to swap tensors, which often fails among fakes
            last = torch.empty_like(own, memory_format=torch.channels_last)
            setattr(module, name, nn.Parameter(last))
    return module
