"""Random reads and writes by index: tables, gathers, scatters, and their gradients."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from paceline.measure.random_tensors import backward, lowered, random_size


def large_table(rng: random.Random) -> None:
    """Rows of a large table and its dense gradient, as recommenders and vocabularies have."""
    columns = random_size(rng, 8, 1024)
    rows = random_size(rng, 1000, min(2_000_000, (1 << 28) // columns))
    tokens = torch.zeros(random_size(rng, 64, 131_072), dtype=torch.int64)
    backward(nn.Embedding(rows, columns)(tokens))


def small_table(rng: random.Random) -> None:
    """Short rows of few letters, kinds or places, picked very often."""
    rows, columns = random_size(rng, 4, 5000), random_size(rng, 2, 128)
    count = random_size(rng, 10_000, min(4_000_000, (1 << 27) // columns))
    tokens = torch.zeros(count, dtype=torch.int64)
    backward(nn.Embedding(rows, columns)(tokens))


def gathered_rows(rng: random.Random) -> None:
    """Rows of a matrix in any order, as nodes along the edges of a graph, and added up again."""
    columns = random_size(rng, 4, 1024)
    rows = random_size(rng, 100, min(1_000_000, (1 << 27) // columns))
    count = random_size(rng, 100, min(2_000_000, (1 << 27) // columns))
    indices = torch.zeros(count, dtype=torch.int64)
    table = lowered(rng, torch.empty(rows, columns)).requires_grad_()
    style = rng.randrange(4)
    if style == 0:
        backward(table[indices])
    elif style == 1:
        backward(table.index_select(0, indices))
    elif style == 2:
        sent = torch.empty(count, columns, dtype=table.dtype, requires_grad=True)
        backward(torch.zeros_like(table).index_add(0, indices, sent))
    else:
        sent = torch.empty(count, columns, dtype=table.dtype, requires_grad=True)
        wide = indices.unsqueeze(1).expand(-1, columns)
        backward(torch.zeros_like(table).scatter_add(0, wide, sent))


def picked_elements(rng: random.Random) -> None:
    """One element of each row, or some, as losses and masks pick them."""
    columns = random_size(rng, 4, 65_536)
    rows = max(1, min(random_size(rng, 16, 65_536), (1 << 27) // columns))
    table = lowered(rng, torch.empty(rows, columns)).requires_grad_()
    picked: Tensor = torch.zeros(rows, random_size(rng, 1, min(columns, 64)), dtype=torch.int64)
    if rng.random() < 0.7:
        backward(table.gather(1, picked))
    else:
        torch.zeros_like(table).scatter_(1, picked, 1.0)
