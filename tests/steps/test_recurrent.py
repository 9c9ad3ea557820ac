"""Recurrent layers: captured as the one call of cuDNN's that a GPU runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster.device import Precision
from paceline.kernels.family import family_of, flop_of
from paceline.kernels.library import load_kernel_model
from paceline.kernels.recurrent import kept_bytes, recurrent_steps
from paceline.steps import Capture, Kernel, Step, capture_step
from paceline.steps.kernel import Operand

BATCH, LENGTH, WIDTH, HIDDEN, WORDS = 8, 24, 96, 416, 500  # of states too wide to stay on chip
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


def recurrent_kernels(captured: Capture, phase: str) -> list[Kernel]:
    kernels = [k for call in captured.calls if call.phase == phase for k in call.kernels]
    return [kernel for kernel in kernels if family_of(kernel) == "recurrent"]


def textbook_flop(kind: Kind, num_layers: int, directions: int) -> float:
    """Forward: every step multiplies its input and its state with the weights of every gate."""
    flop = 0.0
    for layer in range(num_layers):
        inputs = WIDTH if layer == 0 else directions * HIDDEN
        products = 2.0 * (inputs + HIDDEN) * GATES[kind] * HIDDEN
        flop += directions * BATCH * LENGTH * products
    return flop


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("num_layers", "bidirectional"), [(1, False), (2, False), (2, True)], ids=str
)
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_is_one_call_with_the_textbooks_arithmetic(
    kind: Kind, num_layers: int, bidirectional: bool, precision: Precision
) -> None:
    captured = capture(kind, precision, num_layers=num_layers, bidirectional=bidirectional)
    (forward,) = recurrent_kernels(captured, "forward")
    (backward,) = recurrent_kernels(captured, "backward")
    directions = 2 if bidirectional else 1
    flop = textbook_flop(kind, num_layers, directions)
    assert flop_of(forward) == flop
    assert flop_of(backward) == 2 * flop
    assert recurrent_steps(forward) == LENGTH * num_layers * directions
    # Autocast has float16 for cuDNN's layers, whatever it has for all others.
    dtype = "f16" if precision == "bf16" else "f32"
    assert forward.operands[0].dtype == backward.operands[0].dtype == dtype
    # cuDNN multiplies float32 on tensor cores unless it is told not to.
    assert forward.math == ("tf32" if precision == "fp32" else "")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("width", "num_launched"), [(128, 0), (200, 2 * 2 * 50)])
def test_only_steps_whose_states_leave_the_chip_are_launched_one_by_one(
    dtype: str, width: int, num_launched: int
) -> None:
    args = (Operand(dtype, (50, 64, 128)), "lstm", width, 0, 2, True, False, False, True)
    assert recurrent_steps(Kernel("recurrent", args)) == num_launched
    assert recurrent_steps(Kernel("recurrent_backward", args)) == num_launched


def test_a_network_that_is_bfloat16_itself_has_layers_of_bfloat16() -> None:
    with torch.device("meta"):
        model = nn.LSTM(WIDTH, HIDDEN, batch_first=True).bfloat16()
        rows = torch.empty(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)
    step = Step(model=model, inputs=rows, loss=lambda made, _: made[0].sum())
    captured = capture_step(step)
    (forward,) = recurrent_kernels(captured, "forward")
    assert forward.operands[0].dtype == "bf16"


@pytest.mark.parametrize(
    ("kind", "num_layers", "num_bytes"),
    [(nn.LSTM, 1, 32_768_000), (nn.LSTM, 2, 72_089_600), (nn.GRU, 2, 85_196_800)],
)
def test_what_a_kernel_keeps_is_what_an_h200_kept(
    kind: Kind, num_layers: int, num_bytes: int
) -> None:
    name = kind.__name__.lower()
    given = Operand("f32", (50, 64, 128))
    args = (given, name, 512, 0, num_layers, True, False, False, False)
    assert kept_bytes(Kernel("recurrent_backward", args)) == num_bytes


def test_a_small_lstm_keeps_one_state_more() -> None:
    def kept_of(width: int) -> int:
        given = Operand("f32", (50, 64, 128))
        args = (given, "lstm", width, 0, 2, True, False, False, False)
        return kept_bytes(Kernel("recurrent_backward", args)) // (50 * 64 * width * 4)

    assert (kept_of(192), kept_of(200)) == (2 * 6 + 1, 2 * 5 + 1)


def test_results_lie_one_step_after_another_where_the_batch_comes_first() -> None:
    captured = capture(nn.LSTM)
    copies = {
        each.shape
        for call in captured.calls
        for kernel in call.kernels
        if kernel.op == "clone"
        for each in kernel.outputs
    }
    # The head's product reads a copy of the output; cuDNN gets one of its gradient.
    assert {(BATCH, LENGTH, HIDDEN), (LENGTH, BATCH, HIDDEN)} <= copies


@pytest.mark.parametrize("kind", GATES)
def test_every_parameter_gets_its_gradient(kind: Kind) -> None:
    captured = capture(kind, num_layers=2, bidirectional=True, dropout=0.1)
    names = {each.parameter for each in captured.gradients}
    expected = dict(LanguageModel(kind, num_layers=2, bidirectional=True).named_parameters())
    assert names == set(expected)


@pytest.mark.parametrize(
    ("kind", "num_layers", "kept_states"),
    # Read off an H200: 50 steps of 64 x 512 in float32 kept 32,768,000 bytes for one LSTM layer,
    # 72,089,600 for two; GRU 39,321,600 and 85,196,800; plain 6,553,600 and 19,660,800.
    [(nn.LSTM, 1, 5), (nn.LSTM, 2, 11), (nn.GRU, 1, 6), (nn.GRU, 2, 13), (nn.RNN, 1, 1)],
)
def test_what_cudnn_keeps_is_in_memory_until_the_backward_pass(
    kind: Kind, num_layers: int, kept_states: int
) -> None:
    with torch.device("meta"):
        layers = kind(128, 512, num_layers=num_layers)
        inputs = torch.empty(50, 64, 128)

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, rows: Tensor) -> Tensor:
            total: Tensor = self.layers(rows)[0].sum()
            return total

    captured = capture_step(Step(model=Alone(), inputs=inputs, num_samples=64))
    calls = captured.calls
    start = next(i for i, call in enumerate(calls) if call.op == "_cudnn_rnn")
    state_bytes = 50 * 64 * 512 * 4
    grown = calls[start + 1].live_bytes - calls[start - 1].live_bytes
    last_states = (2 if kind is nn.LSTM else 1) * num_layers * 64 * 512 * 4
    assert grown == pytest.approx((kept_states + 1) * state_bytes + last_states, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_has_a_time_on_the_device_and_on_the_host(kind: Kind, precision: Precision) -> None:
    model = load_kernel_model("h200")
    captured = capture(kind, precision, num_layers=2)
    kernels = list(captured.kernels())
    assert all(family_of(kernel) is not None for kernel in kernels)
    (estimate,) = model.estimate(recurrent_kernels(captured, "forward"))
    assert estimate.origin == "mlp"
    # Every step waits for the one before it, in both layers.
    assert estimate.seconds > LENGTH * 2 * 1e-6
    ops = [call.op for call in captured.calls]
    issued_s = dict(zip(ops, model.host.calls_s(captured), strict=True))
    assert issued_s["_cudnn_rnn"] > LENGTH * 2 * 5e-6 > issued_s["embedding"]


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
    (forward,) = recurrent_kernels(captured, "forward")
    steps = 2.0 * BATCH * LENGTH
    assert flop_of(forward) == steps * ((WIDTH + 32) * 4 * HIDDEN + HIDDEN * 32)
    assert forward.outputs[0].shape == (LENGTH, BATCH, 32)


def test_a_kernel_of_a_layer_runs_for_real() -> None:
    from paceline.measure.runner import prepare

    captured = capture(nn.GRU, num_layers=2, bidirectional=True)
    (forward,) = recurrent_kernels(captured, "forward")
    (backward,) = recurrent_kernels(captured, "backward")
    output = prepare(forward, torch.device("cpu"))()
    assert output.shape == forward.outputs[0].shape == (BATCH, LENGTH, 2 * HIDDEN)
    gradients = prepare(backward, torch.device("cpu"))()
    assert gradients[0].shape == (BATCH, LENGTH, WIDTH)
