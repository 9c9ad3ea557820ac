"""Random softmaxes and norms along any dimension, of tensors that lie in memory as they happen to.

Networks take the softmax of a point's neighbours, of classes per pixel, of heads; they norm series
whose channels came last, each sample by itself, or rows that another layer transposed.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.measure.random_tensors import backward, lowered, random_size

_WIDTHS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536)
_LENGTHS = (16, 24, 36, 49, 64, 81, 100, 128, 144, 196, 256, 300, 400, 512, 784, 1024, 2048)
_MOST_NUMEL = 1 << 27


def usual_softmax(rng: random.Random) -> None:
    """Of three to five dimensions, along any but the first; and the sum of exponents."""
    style = rng.randrange(5)
    if style < 2:  # scores of attention: all pairs, in windows, of rows and columns of a table
        length = rng.choice(_LENGTHS)
        given = length if rng.random() < 0.7 else rng.choice(_LENGTHS)
        shape = [rng.choice((1, 2, 3, 4, 6, 8, 12, 16)), length, given]
        if rng.random() < 0.5:
            shape.insert(rng.choice((0, 1)), rng.choice((16, 49, 64, 144, 196)))
        dim = -1 if rng.random() < 0.85 else -2
    elif style == 2:  # of neighbours, of moments, of places
        shape = [rng.choice((64, 256, 1024, 2048)), rng.choice((4, 8, 16, 20, 32)), _width(rng)]
        dim = rng.choice((-2, -2, -2, -1))
    elif style == 3:  # of classes at every place
        side = rng.choice((7, 14, 32, 48, 64, 128, 256))
        shape = [rng.choice((2, 3, 8, 16, 19, 21, 32, 64, 150, 256)), side, side]
        dim = 1
    else:
        shape = [_width(rng), rng.choice(_LENGTHS)]
        dim = rng.choice((1, 2))
    scores = _batch_of(rng, shape)
    operation = rng.choice((functional.softmax,) * 6 + (functional.log_softmax, torch.logsumexp))
    backward(operation(scores, dim=dim))


def usual_norm(rng: random.Random) -> None:
    """Norms of each sample by itself, and of tensors whose dimensions were swapped before."""
    style = rng.randrange(5)
    if style < 2:
        rank = rng.choice((1, 2, 3, 3))
        sides = {1: (64, 4096), 2: (16, 256), 3: (6, 96)}[rank]
        shape = [_width(rng), *[random_size(rng, *sides)] * rank]
        make = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[rank - 1]
        backward(make(shape[0], affine=rng.random() < 0.7)(_batch_of(rng, shape)))
    elif style == 2:
        length, channels = rng.choice(_LENGTHS), _width(rng)
        series = _batch_of(rng, [length, channels]).transpose(1, 2)
        backward(nn.BatchNorm1d(channels)(series))
    else:
        length, width = rng.choice(_LENGTHS), _width(rng)
        rows = _batch_of(rng, [length, width])
        if rng.random() < 0.5:
            rows = _batch_of(rng, [width, length]).transpose(1, 2)
        made = nn.LayerNorm(width, elementwise_affine=rng.random() < 0.4)(rows)
        if rng.random() < 0.5:
            backward(made)
        else:  # a layer behind it returns the gradient with its dimensions swapped
            backward(made.transpose(1, 2))


def _width(rng: random.Random) -> int:
    return rng.choice(_WIDTHS) if rng.random() < 0.8 else random_size(rng, 8, 2048)


def _batch_of(rng: random.Random, shape: list[int]) -> Tensor:
    batch = max(1, min(random_size(rng, 2, 8192), _MOST_NUMEL // math.prod(shape)))
    return lowered(rng, torch.empty(batch, *shape)).requires_grad_()
