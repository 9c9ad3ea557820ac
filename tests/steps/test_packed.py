"""Packed sequences, against the same layers over the padded ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from paceline.steps import Capture, Step, capture_step

BATCH, LENGTH, WIDTH, HIDDEN = 6, 20, 32, 48
Kind = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]


class Reader(nn.Module):
    """Reads texts of unequal length in both directions."""

    def __init__(self, kind: Kind, *, packs: bool, batch_first: bool, total: int | None) -> None:
        super().__init__()
        self.layers = kind(WIDTH, HIDDEN, 2, batch_first=batch_first, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, 5)
        self.packs, self.batch_first, self.total = packs, batch_first, total

    def forward(self, texts: Tensor, lengths: Tensor) -> Tensor:
        if not self.packs:
            heard = self.layers(texts)[0]
        else:
            first = {"batch_first": self.batch_first}
            packed = pack_padded_sequence(texts, lengths.cpu(), enforce_sorted=False, **first)
            made = self.layers(packed)[0]
            heard, _ = pad_packed_sequence(made, total_length=self.total, **first)
        made_of: Tensor = self.head(heard)
        return made_of.sum()


def capture(
    kind: Kind, *, packs: bool = True, batch_first: bool = True, total: int | None = None
) -> Capture:
    sizes = (BATCH, LENGTH) if batch_first else (LENGTH, BATCH)
    lengths = torch.tensor([20, 3, 7, 11, 20, 5])
    with torch.device("meta"):
        model = Reader(kind, packs=packs, batch_first=batch_first, total=total)
        texts = torch.empty(*sizes, WIDTH)
    return capture_step(Step(model=model, inputs=(texts, lengths)))


def layers_of(captured: Capture) -> list[tuple[Any, ...]]:
    kernels = [each for each in captured.kernels() if each.op.startswith("recurrent")]
    return [(each.op, sorted(each.operands[0].shape), each.args[1:6]) for each in kernels]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_texts_cost_their_layers_what_padded_ones_of_full_length_cost(
    kind: Kind, batch_first: bool
) -> None:
    packed, padded = (
        capture(kind, packs=packs, batch_first=batch_first) for packs in (True, False)
    )
    assert layers_of(packed) == layers_of(padded) != []
    assert "as long as the longest" in packed.assumptions[0]
    assert padded.assumptions == ()
    assert {g.parameter for g in packed.gradients} == {g.parameter for g in padded.gradients}


def test_padding_to_a_length_of_ones_own() -> None:
    captured = capture(nn.LSTM, total=30)
    (head, *_) = (each for each in captured.kernels() if each.op == "addmm")
    assert head.outputs[0].shape == (30 * BATCH, 5)


def test_pytorchs_own_packing_is_back_afterwards() -> None:
    capture(nn.LSTM)
    packed = pack_padded_sequence(torch.rand(3, 4, 2), torch.tensor([4, 2, 1]), batch_first=True)
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    assert pad_packed_sequence(packed)[1].tolist() == [4, 2, 1]
