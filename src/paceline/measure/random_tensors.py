"""Random sizes and tensors for neighbours, and their backward pass."""

from __future__ import annotations

import random

import torch
from torch import Tensor


def random_size(rng: random.Random, low: int, high: int) -> int:
    """A size between the two, evenly in its logarithm; half of them round numbers."""
    value: float = low * (high / low) ** rng.random()
    step = rng.choice((1, 1, 1, 2, 4, 8, 8, 8, 16, 32, 64, 64))
    return max(low, round(value / step) * step)


def random_side(rng: random.Random) -> int:
    """How wide an image is after some layers of a network that halve it, padding it or not."""
    side = rng.choice((224, 224, 224, 256, 299, 384, 192, 128, 64, 32))
    is_padded = rng.random() < 0.6
    for _ in range(rng.randrange(6)):
        side = -(-side // 2) if is_padded else (side - 1) // 2  # a window of 3
        if not is_padded and rng.random() < 0.3:
            side -= 2  # and one that goes on step by step
    return max(4, side)


def random_image(rng: random.Random, channels: int, *, numel: int = 1 << 28) -> Tensor:
    """A batch of images of at most ``numel`` elements, in either memory format."""
    side = rng.choice((7, 14, 28, 56, 112, 224, random_size(rng, 4, 256), random_side(rng)))
    other = side if rng.random() < 0.9 else max(1, side + rng.randint(-3, 8))
    batch = min(random_size(rng, 1, 512), max(1, numel // (channels * side * other)))
    image = torch.empty(batch, channels, side, other)
    if rng.random() < 0.4:
        image = image.contiguous(memory_format=torch.channels_last)
    return image


def lowered(rng: random.Random, tensor: Tensor) -> Tensor:
    """Under autocast most activations are of low precision."""
    if torch.is_autocast_enabled("cpu") and rng.random() < 0.75:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def backward(output: Tensor) -> None:
    """Send a gradient of the output's own shape back through it."""
    output.backward(torch.empty_like(output))  # type: ignore[no-untyped-call]
