"""Elements picked by a mask, against what PyTorch picks where every flag is set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paceline import predict
from paceline.steps import Capture, Step, capture_step
from paceline.steps.file import capture_from_dict, capture_to_dict

ROWS, WIDTH, CLASSES = 40, 8, 5
PICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda made, mask: made[mask],
    "elements": lambda made, mask: made[mask[:, None].expand(-1, CLASSES)],
    "columns": lambda made, mask: made.t()[:, mask],
    "with places": lambda made, mask: made[mask, torch.zeros(ROWS, dtype=torch.int64)],
    "select": lambda made, mask: made.masked_select(mask[:, None]),
}


class Picks(nn.Module):
    """Returns the sum of the squares of what was picked."""

    def __init__(self, pick: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.pick = nn.Linear(WIDTH, CLASSES), pick

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        return self.pick(self.linear(rows), mask).square().sum()


def step(pick: Callable[[Tensor, Tensor], Tensor]) -> Step:
    mask = torch.arange(ROWS) % 3 == 0
    return Step(model=Picks(pick), inputs=(torch.randn(ROWS, WIDTH), mask))


def capture(pick: Callable[[Tensor, Tensor], Tensor]) -> Capture:
    return capture_step(step(pick))


@pytest.mark.parametrize("name", PICKS)
def test_all_elements_are_taken_to_be_picked(name: str) -> None:
    captured = capture(PICKS[name])
    everything = PICKS[name](torch.randn(ROWS, CLASSES), torch.ones(ROWS, dtype=torch.bool))
    squares = next(each for each in captured.kernels() if each.op == "pow.Tensor_Scalar")
    assert squares.outputs[0].shape == tuple(everything.shape)
    assert {each.parameter for each in captured.gradients} == {"linear.weight", "linear.bias"}


def test_a_gpu_lists_the_places_before_it_picks_and_before_it_puts_back() -> None:
    ops = [each.op for each in capture(PICKS["rows"]).kernels()]
    assert [op for op in ops if "ind" in op or op == "nonzero"] == [
        "nonzero",
        "index.Tensor",
        "nonzero",
        "index_put",
    ]


def test_the_prediction_says_so_also_after_a_file() -> None:
    captured = capture(PICKS["rows"])
    (sentence,) = captured.assumptions
    assert "taken to pick all" in sentence
    assert capture_from_dict(capture_to_dict(captured)).assumptions == (sentence,)
    assert sentence in predict(step(PICKS["rows"]), device="h200").warnings
    assert capture(lambda made, mask: torch.where(mask[:, None], made, 0.0)).assumptions == ()


def test_setting_what_a_mask_marks_needs_no_assumption() -> None:
    def set_to_zero(made: Tensor, mask: Tensor) -> Tensor:
        made = made.clone()
        made[mask] = 0.0
        return made

    assert capture(set_to_zero).assumptions == ()
