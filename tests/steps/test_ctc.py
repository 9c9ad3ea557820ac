"""The loss of speech networks, against what PyTorch's own returns for values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.measure.runner import prepare
from paceline.steps import Capture, Step, capture_step

STEPS, BATCH, LETTERS, LONGEST = 40, 4, 29, 12


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Linear(16, LETTERS)

    def forward(self, sounds: Tensor) -> Tensor:
        heard: Tensor = self.letters(sounds).log_softmax(2)
        return heard


def capture(texts: Tensor, lengths: Any, precision: Any = "fp32") -> Capture:
    def loss(heard: Tensor, wanted: Tensor) -> Tensor:
        return functional.ctc_loss(heard, wanted, *lengths)

    sounds = torch.zeros(STEPS, BATCH, 16)
    step = Step(model=Listener(), inputs=sounds, targets=texts, loss=loss, precision=precision)
    return capture_step(step)


def texts() -> Tensor:
    return torch.randint(1, LETTERS, (BATCH, LONGEST))


NUMBERS: Any = ([STEPS] * BATCH, [LONGEST] * BATCH)
TENSORS = (torch.full((BATCH,), STEPS), torch.full((BATCH,), LONGEST))


@pytest.mark.parametrize("lengths", [NUMBERS, TENSORS], ids=["numbers", "tensors"])
@pytest.mark.parametrize("is_flat", [False, True])
def test_forward_and_backward_have_the_sizes_of_pytorchs(lengths: Any, is_flat: bool) -> None:
    wanted = texts()
    captured = capture(wanted.flatten() if is_flat else wanted, lengths)
    forward, backward = (each for each in captured.kernels() if each.op.startswith("ctc_loss"))
    heard = torch.randn(STEPS, BATCH, LETTERS).log_softmax(2)
    _, log_alpha = torch.ops.aten._ctc_loss.default(heard, wanted, *NUMBERS)
    assert forward.outputs[0].shape == tuple(log_alpha.shape)
    assert backward.outputs[0].shape == tuple(heard.shape)
    assert "as long as the longest" in captured.assumptions[0]
    names = {each.parameter for each in captured.gradients}
    assert names == {"letters.weight", "letters.bias"}


def test_lengths_given_as_numbers_decide_where_texts_lie_behind_one_another() -> None:
    uneven = [3, 4, 5, 36]
    captured = capture(torch.ones(sum(uneven), dtype=torch.int64), ([STEPS] * BATCH, uneven))
    (forward, _) = (each for each in captured.kernels() if each.op.startswith("ctc_loss"))
    assert forward.operands[1].shape == (BATCH, 36)


def test_its_kernels_run_for_real() -> None:
    captured = capture(texts(), NUMBERS)
    forward, backward = (each for each in captured.kernels() if each.op.startswith("ctc_loss"))
    losses, log_alpha = prepare(forward, torch.device("cpu"))()
    assert losses.shape == (BATCH,) and bool(losses.isfinite().all())
    assert tuple(log_alpha.shape) == forward.outputs[0].shape
    gradient = prepare(backward, torch.device("cpu"))()
    assert tuple(gradient.shape) == backward.outputs[0].shape
    assert bool((gradient != 0).any())


def test_under_autocast_it_is_computed_in_float32() -> None:
    captured = capture(texts(), NUMBERS, precision="bf16")
    kernels = [each for each in captured.kernels() if each.op.startswith("ctc_loss")]
    assert {each.operands[0].dtype for each in kernels} == {"f32"}


def test_one_text_without_a_batch_and_losses_without_a_mean() -> None:
    losses: Any = functional.ctc_loss

    def loss(heard: Tensor, wanted: Tensor) -> Any:
        alone = losses(heard[:, 0], wanted[0], [STEPS], [LONGEST], reduction="sum")
        each = losses(heard, wanted, *NUMBERS, reduction="none", zero_infinity=True)
        return alone + each.amax(0)

    sounds = torch.zeros(STEPS, BATCH, 16)
    captured = capture_step(Step(model=Listener(), inputs=sounds, targets=texts(), loss=loss))
    forward = [each for each in captured.kernels() if each.op == "ctc_loss"]
    assert [each.operands[0].shape[1] for each in forward] == [1, BATCH]
