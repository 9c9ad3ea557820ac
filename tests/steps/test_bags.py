"""Bags of embeddings, against the rows that PyTorch's own operator really touches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.kernels.family import bytes_of, family_of
from paceline.steps import Step, capture_step

ROWS, WIDTH, BATCH, SIZE = 1000, 64, 32, 10


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")

    def forward(self, words: Tensor) -> Tensor:
        total: Tensor = self.bags(words).sum()
        return total


def test_a_bag_moves_what_its_rows_weigh_and_has_a_dense_gradient() -> None:
    words = torch.zeros(BATCH, SIZE, dtype=torch.int64)
    kernels = list(capture_step(Step(model=Bags(), inputs=words)).kernels())
    assert all(family_of(kernel) is not None for kernel in kernels)
    lookup, gradient = (each for each in kernels if each.op.startswith("embedding"))
    # A row read for every word and one written for every bag: in fp32, 4 bytes per number.
    touched_bytes = 4 * WIDTH * (BATCH * SIZE + BATCH)
    read_and_written = 2 * 4 * WIDTH * lookup.outputs[0].shape[0]
    assert read_and_written == touched_bytes
    assert bytes_of(lookup) >= touched_bytes
    assert gradient.op == "embedding_dense_backward"
    assert gradient.operands[0].shape == (BATCH * SIZE, WIDTH)
    assert gradient.outputs[0].shape == (ROWS, WIDTH)
