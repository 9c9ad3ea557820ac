"""Recurrent layers: captured as the products and gates that they do, not as one opaque call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster.device import Precision
from paceline.kernels.family import family_of, flop_of
from paceline.kernels.library import load_kernel_model
from paceline.steps import Capture, Step, capture_step

BATCH, LENGTH, WIDTH, HIDDEN, WORDS = 8, 24, 96, 160, 500
GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
Kind = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]


class LanguageModel(nn.Module):
    """Predicts every next word."""

    def __init__(self, kind: Kind, **settings: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.recurrent = kind(WIDTH, HIDDEN, batch_first=True, **settings)
        directions = 2 if settings.get("bidirectional") else 1
        self.head = nn.Linear(directions * HIDDEN, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.words(tokens))[0])
        return logits


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def capture(kind: Kind, precision: Precision = "fp32", **settings: Any) -> Capture:
    with torch.device("meta"):
        model = LanguageModel(kind, **settings)
        tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    step = Step(model=model, inputs=tokens, targets=tokens, loss=loss, precision=precision)
    return capture_step(step)


def product_flop(captured: Capture, phase: str) -> float:
    kernels = [k for call in captured.calls if call.phase == phase for k in call.kernels]
    return sum(flop_of(kernel) for kernel in kernels if family_of(kernel) == "matmul")


def textbook_flop(kind: Kind, num_layers: int, directions: int) -> float:
    """Forward: every step multiplies its input and its state with the weights of every gate."""
    flop = 0.0
    for layer in range(num_layers):
        inputs = WIDTH if layer == 0 else directions * HIDDEN
        products = 2.0 * (inputs + HIDDEN) * GATES[kind] * HIDDEN
        flop += directions * BATCH * LENGTH * products
    return flop + 2.0 * BATCH * LENGTH * directions * HIDDEN * WORDS


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("num_layers", "bidirectional"), [(1, False), (2, False), (2, True)], ids=str
)
@pytest.mark.parametrize("kind", GATES)
def test_the_arithmetic_is_the_textbooks(
    kind: Kind, num_layers: int, bidirectional: bool, precision: Precision
) -> None:
    captured = capture(kind, precision, num_layers=num_layers, bidirectional=bidirectional)
    forward = textbook_flop(kind, num_layers, 2 if bidirectional else 1)
    assert product_flop(captured, "forward") == pytest.approx(forward, rel=0.01)
    # Data and weights; the first step's state is no parameter, so its gradient is not computed.
    assert product_flop(captured, "backward") == pytest.approx(2 * forward, rel=0.04)


@pytest.mark.parametrize("kind", GATES)
def test_inputs_are_multiplied_at_once_and_states_step_by_step(kind: Kind) -> None:
    captured = capture(kind)
    forward = [k for call in captured.calls if call.phase == "forward" for k in call.kernels]
    shapes = [k.outputs[0].shape for k in forward if family_of(k) == "matmul"]
    gates = GATES[kind] * HIDDEN
    assert shapes.count((BATCH * LENGTH, gates)) == 1
    assert shapes.count((BATCH, gates)) == LENGTH


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", GATES)
def test_the_kernels_have_families_and_a_time(kind: Kind, precision: Precision) -> None:
    captured = capture(kind, precision, num_layers=2, dropout=0.1)
    model = load_kernel_model("h200")
    kernels = list(captured.kernels())
    assert all(family_of(kernel) is not None for kernel in kernels)
    seconds = sum(estimate.seconds for estimate in model.estimate(kernels))
    # Every step waits for the one before it, in both layers and both passes.
    assert seconds > 4 * LENGTH * 2e-6
    products = [kernel for kernel in kernels if family_of(kernel) == "matmul"]
    assert {kernel.operands[-1].dtype for kernel in products} == (
        {"bf16"} if precision == "bf16" else {"f32"}
    )


def test_under_autocast_a_weight_is_cast_once_for_all_steps() -> None:
    captured = capture(nn.LSTM, "bf16")
    forward = [k for call in captured.calls if call.phase == "forward" for k in call.kernels]
    assert sum(kernel.op == "_to_copy" for kernel in forward) < LENGTH


def test_the_cpus_own_lstm_is_back_afterwards() -> None:
    enabled = torch._C._get_mkldnn_enabled()
    capture(nn.LSTM)
    assert torch._C._get_mkldnn_enabled() == enabled


def test_a_state_that_is_given_and_a_projection() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(WIDTH, HIDDEN, proj_size=32)

        def forward(self, rows: Tensor, state: Tensor, cell: Tensor) -> Tensor:
            total: Tensor = self.recurrent(rows, (state, cell))[0].sum()
            return total

    sizes = ((LENGTH, BATCH, WIDTH), (1, BATCH, 32), (1, BATCH, HIDDEN))
    inputs = tuple(torch.empty(size, device="meta") for size in sizes)
    captured = capture_step(Step(model=Given(), inputs=inputs, num_samples=BATCH))
    steps = 2.0 * BATCH * LENGTH
    expected = steps * ((WIDTH + 32) * 4 * HIDDEN + HIDDEN * 32)
    assert product_flop(captured, "forward") == pytest.approx(expected, rel=0.01)
