"""Models that are captured although they decide by chance, or learn attention's bias."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.steps import Capture, Step, capture_step


class Dropping(nn.Module):
    """Skips its second layer now and then, as LayerDrop does."""

    def __init__(self, rate: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.rate, self.shape = rate, shape

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.first(rows)
        if torch.rand(self.shape) >= self.rate:
            rows = self.second(rows)
        return rows.sum()


class Biased(nn.Module):
    """Attention with a bias that is learned, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(1, 4, 10, 10))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows * self.scale
        bias = self.bias.expand(rows.shape[0], -1, -1, -1)
        mixed = functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=bias)
        return mixed.sum()


def captured(model: nn.Module, *shape: int) -> Capture:
    return capture_step(Step(model=model, inputs=torch.randn(*shape)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize(("rate", "num_layers"), [(0.1, 2), (0.9, 1)])
def test_a_layer_that_is_mostly_kept_is_kept(
    rate: float, num_layers: int, shape: tuple[int, ...]
) -> None:
    capture = captured(Dropping(rate, shape), 4, 8)
    assert sum(kernel.op == "addmm" for kernel in capture.kernels()) == num_layers


def test_attention_whose_bias_is_learned_gives_it_a_gradient() -> None:
    capture = captured(Biased(), 2, 4, 10, 8)
    kernels = [kernel for kernel in capture.kernels() if kernel.op.startswith("attention")]
    assert [kernel.op for kernel in kernels] == ["attention", "attention_backward"]
    assert kernels[0].args[3].shape == (2, 4, 10, 10)
    assert {each.parameter for each in capture.gradients} == {"scale", "bias"}
