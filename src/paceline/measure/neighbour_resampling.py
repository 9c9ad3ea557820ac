"""Random changes of resolution: interpolation, and pooling of signals and volumes."""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.nn import functional

from paceline.measure.random_tensors import backward, lowered, random_image, random_size

_MODES = {3: ("nearest", "linear"), 4: ("nearest", "bilinear", "bilinear", "bicubic")}


def resampling(rng: random.Random) -> None:
    """Interpolation of signals, images and volumes, up or down, in any mode."""
    tensor = _signal_or_image(rng)
    mode = rng.choice(_MODES.get(tensor.dim(), ("nearest", "trilinear")))
    factor = rng.choice((0.5, 2.0, 2.0, 2.0, 4.0, 8.0))
    size = [max(1, int(each * factor)) for each in tensor.shape[2:]]
    if tensor.shape[0] * tensor.shape[1] * torch.Size(size).numel() > 1 << 29:
        size = [max(1, each // 2) for each in tensor.shape[2:]]
    corners = None if mode == "nearest" else rng.random() < 0.3
    made = functional.interpolate(
        tensor.requires_grad_(), size=size, mode=mode, align_corners=corners
    )
    backward(made)


def pooling_of_signals(rng: random.Random) -> None:
    """Pooling over one dimension or three."""
    tensor = _signal_or_image(rng, images=False).requires_grad_()
    side, stride = rng.choice(((2, 2), (2, 2), (3, 2), (3, 1)))
    if tensor.dim() == 3:
        pool = rng.choice((functional.max_pool1d, functional.avg_pool1d))
    else:
        pool = rng.choice((functional.max_pool3d, functional.avg_pool3d))
    backward(pool(tensor, side, stride, padding=side // 2 if side > 2 else 0))


def _signal_or_image(rng: random.Random, *, images: bool = True) -> Tensor:
    channels = random_size(rng, 4, 1024)
    style = rng.random()
    if images and style < 0.6:
        return lowered(rng, random_image(rng, channels, numel=1 << 26))
    if style < 0.8:
        length = random_size(rng, 32, 65_536)
        batch = max(1, min(random_size(rng, 1, 128), (1 << 26) // (channels * length)))
        return lowered(rng, torch.empty(batch, channels, length))
    side = rng.choice((8, 16, 24, 32, 48, 64, 96))
    channels = min(channels, 256)
    batch = max(1, min(random_size(rng, 1, 16), (1 << 26) // (channels * side**3)))
    return lowered(rng, torch.empty(batch, channels, side, side, side))
