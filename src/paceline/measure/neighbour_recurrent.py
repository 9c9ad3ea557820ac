"""Random recurrent layers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from paceline.measure.random_tensors import backward, random_size

_MOST_STEPS = 1 << 12  # along the sequence, of all layers and directions

_WIDTHS = (64, 128, 200, 256, 256, 300, 320, 512, 512, 650, 768, 1024, 1024, 1500)


def recurrent(rng: random.Random) -> None:
    """An LSTM, a GRU or a plain one, of one to four layers, in one direction or both."""
    kind: Any = rng.choice((nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
    width = _usual(rng, _WIDTHS, random_size(rng, 32, 2048))
    given = _usual(rng, (width, width, 2 * width, *_WIDTHS), random_size(rng, 16, 2048))
    num_layers, both = rng.choice((1, 1, 2, 2, 3, 4)), rng.random() < 0.35
    batch_first = rng.random() < 0.5
    batch = _usual(rng, (8, 16, 20, 32, 32, 64, 64, 128, 256, 512), random_size(rng, 1, 512))
    length = _usual(rng, (20, 32, 35, 50, 64, 100, 128, 200, 256, 512), random_size(rng, 8, 1024))
    length = max(4, min(length, _MOST_STEPS // (num_layers * (2 if both else 1))))
    batch = max(1, min(batch, (1 << 27) // (length * max(width, given))))
    layers = kind(
        given,
        width,
        num_layers=num_layers,
        batch_first=batch_first,
        bidirectional=both,
        bias=rng.random() < 0.9,
        dropout=0.1 if num_layers > 1 and rng.random() < 0.4 else 0.0,
    )
    shape = (batch, length, given) if batch_first else (length, batch, given)
    backward(layers(torch.empty(shape, requires_grad=True))[0])


def usual_recurrent(rng: random.Random) -> None:
    """Many short sequences of modest width, whose inputs lie in memory as other layers left them.

    Networks over sound cut it into pieces and step through each; over text and series they step
    through whole batches. Convolutions before them leave the channels first.
    """
    kind: Any = rng.choice((nn.LSTM, nn.LSTM, nn.GRU))
    width = rng.choice((32, 48, 64, 96, 128, 128, 160, 192, 192, 256, 256, 384, 400, 512))
    if rng.random() < 0.4:
        width = rng.choice((16, 20, 24, 36, 40, 50, 56, 72, 80, 88, 100, 112, 120, 136, 144, 176))
    given = rng.choice((width, 2 * width, width // 2, 64, 80, 128, 256, 512))
    num_layers, both = rng.choice((1, 1, 1, 2, 3)), rng.random() < 0.6
    length = rng.choice((16, 24, 40, 50, 64, 80, 100, 120, 150, 200, 250, 300, 500))
    batch = rng.choice((32, 64, 128, 256, 512, 800, 1024, 1280, 2048, 3000, 4096, 8192))
    if width <= 192 and rng.random() < 0.4:
        batch = rng.choice((2048, 4096, 6000, 8192, 12_288, 16_384, 24_576, 32_768))
    batch = max(1, min(batch, (1 << 27) // (length * max(2 * width, given))))
    batch_first = rng.random() < 0.6
    layers = kind(given, width, num_layers, batch_first=batch_first, bidirectional=both)
    sizes = (batch, length, given) if batch_first else (length, batch, given)
    order = rng.choice(((0, 1, 2), (0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)))
    held = torch.empty([sizes[dim] for dim in order])  # permuted back, the sizes are right
    rows = held.permute([order.index(dim) for dim in range(3)])
    backward(layers(rows.requires_grad_())[0])


def _usual(rng: random.Random, sizes: Sequence[int], other: int) -> int:
    """What programs often have, or any other size."""
    return rng.choice(sizes) if rng.random() < 0.6 else other
