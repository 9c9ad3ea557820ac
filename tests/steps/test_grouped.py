"""Grouped products: captured as the products of each group, with the shapes of PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.kernels.family import flop_of
from paceline.steps import Capture, Step, capture_step

EXPERTS, ROWS, WIDTH, MADE = 4, 64, 32, 48


class Experts(nn.Module):
    """A mixture of experts whose rows are sorted by expert already."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(EXPERTS, WIDTH, MADE))

    def forward(self, rows: Tensor) -> Tensor:
        step = ROWS // EXPERTS
        ends = torch.arange(step, ROWS + 1, step, dtype=torch.int32, device=rows.device)
        made: Tensor = torch._grouped_mm(rows, self.weights.to(rows.dtype), offs=ends)
        return made.float().sum()


def captured(dtype: torch.dtype) -> Capture:
    rows = torch.empty(ROWS, WIDTH, dtype=dtype, device="meta", requires_grad=True)
    return capture_step(Step(model=Experts(), inputs=rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_multiply_as_much_as_their_rows_do_alone(dtype: torch.dtype) -> None:
    products = [each for each in captured(dtype).kernels() if each.op in ("mm", "bmm")]
    one = 2 * ROWS * WIDTH * MADE  # whatever expert a row goes to, it meets WIDTH x MADE weights
    total = sum(flop_of(each) for each in products)
    assert total in (2 * one, 3 * one)  # without or with the gradient of the rows
    # One kernel for all groups in bf16, one for each in other dtypes.
    assert {each.op for each in products} == {"bmm" if dtype == torch.bfloat16 else "mm"}


def test_shapes_are_those_of_pytorchs_own_operator() -> None:
    rows = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    weights = torch.randn(EXPERTS, WIDTH, MADE, dtype=torch.bfloat16)
    ends = torch.arange(ROWS // EXPERTS, ROWS + 1, ROWS // EXPERTS, dtype=torch.int32)
    real = torch._grouped_mm(rows, weights, offs=ends)
    first = next(each for each in captured(torch.bfloat16).kernels() if each.op == "bmm")
    groups, share, made = first.outputs[0].shape
    assert (groups * share, made) == tuple(real.shape)


def test_two_matrices_need_their_ends() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.randn(WIDTH, ROWS))

        def forward(self, rows: Tensor) -> Tensor:
            made: Tensor = torch._grouped_mm(self.factor.to(rows.dtype), rows)
            return made.sum()

    with pytest.raises(ValueError, match="offs"):
        capture_step(Step(model=Wrong(), inputs=torch.randn(ROWS, MADE)))
