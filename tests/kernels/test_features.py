"""What the networks see: the same for kernels that run alike, different where they do not."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from paceline.kernels.family import family_of
from paceline.kernels.features import features_of
from paceline.measure.neighbour_indexing import small_table
from paceline.measure.neighbour_rare import (
    rare_activation,
    rare_indexing,
    rare_loss,
    rare_reduction,
    rare_sampling,
    rare_text_loss,
)
from paceline.measure.neighbours import Case, draw_neighbours
from paceline.measure.usual_convolutions import short_signal
from paceline.measure.usual_norms import usual_norm, usual_softmax
from paceline.steps import Kernel, Operand
from paceline.steps.canonical import operand


def seen(left: torch.Tensor, right: torch.Tensor) -> list[float]:
    """Features of a sum, whose strides PyTorch's own iterator chooses."""
    made = torch.add(left, right)
    args = (operand(left), operand(right))
    kernel = Kernel("add.Tensor", args, outputs=(operand(made),))
    return list(features_of([kernel], "pointwise")[0])


def strided(*order: int) -> torch.Tensor:
    """(8, 12, 16), whose dimensions lie in memory in this order."""
    sizes = (8, 12, 16)
    held = torch.empty([sizes[dim] for dim in order])
    return held.permute([order.index(dim) for dim in range(3)])


def test_operands_that_lie_alike_are_one_row_whatever_their_order() -> None:
    rows = torch.empty(8 * 12 * 16)
    flat = seen(rows, rows)
    kept = seen(strided(0, 1, 2), strided(0, 1, 2))
    turned = seen(strided(2, 0, 1), strided(2, 0, 1))
    walk = slice(-16, None)
    assert flat[walk] == kept[walk] == turned[walk]


def test_an_operand_that_lies_across_is_seen() -> None:
    alike = seen(strided(0, 1, 2), strided(0, 1, 2))
    across = seen(strided(0, 1, 2), strided(0, 2, 1))
    spread = seen(strided(0, 1, 2), torch.empty(12, 1).expand(8, 12, 16))
    assert alike[-16:] != across[-16:] != spread[-16:]


@pytest.mark.parametrize("along", [0, 2, 3, -1])
def test_tensors_are_stacked_along_any_dimension(along: int) -> None:
    parts = (Operand("f32", (4, 6, 10)),) * 3
    made = torch.stack([torch.empty(4, 6, 10)] * 3, along)
    kernel = Kernel("stack", (parts, along), outputs=(operand(made),))
    assert np.isfinite(features_of([kernel], "pointwise")).all()


def test_nothing_may_be_joined_with_something() -> None:
    parts = (Operand("f32", (0,)), Operand("f32", (4, 6, 10)))
    kernel = Kernel("cat", (parts, 2), outputs=(Operand("f32", (4, 6, 10)),))
    alone = Kernel("cat", (parts[1:], 2), outputs=kernel.outputs)
    assert features_of([kernel], "pointwise")[0, -20:] == pytest.approx(
        features_of([alone], "pointwise")[0, -20:]
    )


@pytest.mark.parametrize("along", [0, 1, -1])
def test_joined_tensors_are_seen_by_the_length_of_their_pieces(along: int) -> None:
    parts = (Operand("f32", (4, 6, 10)),) * 3
    made = torch.cat([torch.empty(4, 6, 10)] * 3, along)
    kernel = Kernel("cat", (parts, along), outputs=(operand(made),))
    joined, inner, piece, mixed = features_of([kernel], "pointwise")[0][-4:]
    pieces = {0: 4 * 6 * 10, 1: 6 * 10, -1: 10}
    assert joined == 1.0
    assert mixed == 0.0
    assert inner == pytest.approx(np.log2(pieces[along] // parts[0].shape[along]), abs=0.2)
    assert piece == pytest.approx(np.log2(pieces[along]), abs=0.2)


@pytest.mark.parametrize(
    "case",
    [
        rare_sampling,
        rare_activation,
        rare_loss,
        rare_text_loss,
        rare_reduction,
        rare_indexing,
        usual_softmax,
        usual_norm,
        short_signal,
        small_table,
    ],
)
def test_rare_operators_have_a_family_and_features(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.measure.neighbours._CASES", ((case, 1.0),))
    found = draw_neighbours(random.Random(3), "fp32", 12)
    assert found.tried[case.__name__] == 12
    assert sum(found.dropped.values()) < 6
    for kernel in found.kernels:
        family = family_of(kernel)
        assert family is not None, kernel.op
        assert np.isfinite(features_of([kernel], family)).all()


def softmax_along(dim: int, *shape: int) -> list[float]:
    scores = Operand("f32", shape)
    return list(
        features_of([Kernel("_softmax", (scores, dim, False), outputs=(scores,))], "softmax")[0]
    )


def test_a_softmax_is_seen_by_what_lies_along_its_dimension_and_around_it() -> None:
    assert softmax_along(-1, 8, 16, 32) == softmax_along(1, 8 * 16, 32)
    assert softmax_along(1, 8, 16, 3, 4) == softmax_along(1, 8, 16, 12)
    assert softmax_along(1, 8, 16, 32) != softmax_along(2, 8, 16, 32)
    # Backward, the dimension comes behind two tensors.
    scores = Operand("f32", (8, 16, 32))
    args = (scores, scores, 1, "dtype:f32")
    backward = Kernel("_softmax_backward_data", args, outputs=(scores,))
    rows = features_of([backward], "softmax")[0]
    assert list(rows[8:]) == softmax_along(1, 8, 16, 32)[8:]


def test_a_ctc_loss_is_seen_by_its_steps_texts_and_classes() -> None:
    def features(steps: int, batch: int, classes: int, longest: int) -> list[float]:
        heard, texts = Operand("f32", (steps, batch, classes)), Operand("i64", (batch, longest))
        alpha = Operand("f32", (batch, steps, 2 * longest + 1))
        return list(
            features_of([Kernel("ctc_loss", (heard, texts), outputs=(alpha,))], "softmax")[0]
        )

    first = features(100, 16, 32, 20)
    others = [features(200, 16, 32, 20), features(100, 32, 32, 20)]
    others += [features(100, 16, 64, 20), features(100, 16, 32, 40)]
    assert all(first != each for each in others)


def test_a_batch_norm_sees_that_its_series_were_transposed() -> None:
    def norm(strides: tuple[int, ...] | None) -> list[float]:
        image = Operand("f32", (64, 32, 100), strides)
        return list(
            features_of(
                [Kernel("batch_norm", (image, True, True), outputs=(image,))], "batch_norm"
            )[0]
        )

    assert norm(None) != norm((3200, 1, 32))
