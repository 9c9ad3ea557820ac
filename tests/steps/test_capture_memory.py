"""Memory of a captured step, against accounts made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint

from paceline.steps import Step, capture_step

ROWS, WIDTH, HIDDEN, CLASSES = 4096, 128, 512, 256
SMALL = 512  # what the allocator gives for a scalar


def floats(*shape: int) -> int:
    return 4 * int(torch.Size(shape).numel())


def plain_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, 0.1)


def perceptron_step(
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = plain_sgd,
) -> Step:
    with torch.device("meta"):
        return Step(
            model=nn.Sequential(
                nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES, bias=False)
            ),
            inputs=torch.empty(ROWS, WIDTH),
            targets=torch.empty(ROWS, dtype=torch.int64),
            loss=functional.cross_entropy,
            optimizer=optimizer,
        )


PARAMETERS = floats(WIDTH, HIDDEN) + floats(HIDDEN) + floats(HIDDEN, CLASSES)
BATCH = floats(ROWS, WIDTH) + 8 * ROWS
ACTIVATION = floats(ROWS, HIDDEN)
LOGITS = floats(ROWS, CLASSES)


def test_what_stands_through_the_step() -> None:
    memory = capture_step(perceptron_step()).memory
    assert memory.parameters_bytes == PARAMETERS
    assert memory.gradients_bytes == PARAMETERS
    assert memory.batch_bytes == BATCH
    assert memory.optimizer_bytes == 0


def test_live_memory_call_by_call_of_a_perceptron() -> None:
    capture = capture_step(perceptron_step())
    live = {(call.phase, call.op): call.live_bytes for call in capture.calls if call.kernels}
    standing = PARAMETERS + BATCH
    # Forward: the sums live until the ReLU's result is there, the logits until the loss is.
    assert live["forward", "addmm"] == standing + ACTIVATION
    assert live["forward", "relu"] == standing + 2 * ACTIVATION
    assert live["forward", "_log_softmax"] == standing + ACTIVATION + 2 * LOGITS
    # Backward: of the loss two scalars live on, and the first gradient is a third. The gradient
    # of the logits, of the result and of the sums come one after the other; a saved tensor goes
    # when the node that saved it has run.
    first = live["backward", "nll_loss_backward"] - standing - ACTIVATION - 2 * LOGITS
    assert 0 < first <= 4 * SMALL
    last = live["backward", "threshold_backward"] - standing
    last -= floats(HIDDEN, CLASSES) + 3 * ACTIVATION  # saved result, its gradient, the sums'
    assert 0 <= last <= 3 * SMALL
    assert capture.tensors_peak_bytes == max(
        live["backward", "threshold_backward"], live["backward", "mm"]
    )
    # At the end: parameters, gradients, batch.
    final = capture.calls[-1].live_bytes - standing - PARAMETERS
    assert 0 <= final <= 2 * SMALL


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [(lambda p: SGD(p, 0.1, momentum=0.9), 1), (Adam, 2)],
    ids=["momentum", "adam"],
)
def test_an_optimizers_state_is_there_from_the_first_call(
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], copies: int
) -> None:
    plain, stateful = capture_step(perceptron_step()), capture_step(perceptron_step(optimizer))
    steps = 3 * SMALL if copies == 2 else 0  # Adam counts its steps for every parameter
    assert stateful.memory.optimizer_bytes == copies * PARAMETERS + steps
    assert stateful.calls[0].live_bytes - plain.calls[0].live_bytes == copies * PARAMETERS + steps


def test_a_state_that_exists_counts_as_one_that_is_made() -> None:
    step = perceptron_step(Adam)
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES, bias=False)
    )
    optimizer = Adam(model.parameters())
    model(torch.randn(2, WIDTH)).sum().backward()
    optimizer.step()
    with_state = capture_step(replace(step, model=model, optimizer=optimizer))
    assert with_state.memory == capture_step(step).memory
    assert with_state.tensors_peak_bytes == capture_step(step).tensors_peak_bytes


def test_low_precision_halves_activations_and_keeps_parameters() -> None:
    full = capture_step(perceptron_step())
    low = capture_step(replace(perceptron_step(), precision="bf16"))
    assert low.memory == full.memory
    relu = {
        capture.precision: next(c.live_bytes for c in capture.calls if c.op == "relu")
        for capture in (full, low)
    }
    # The casts of the input and of both layers' parameters so far are what autocast adds.
    casts = (floats(ROWS, WIDTH) + floats(WIDTH, HIDDEN) + floats(HIDDEN)) // 2
    assert relu["bf16"] == relu["fp32"] - ACTIVATION + casts


def test_checkpointing_lowers_the_peak_by_what_is_not_saved() -> None:
    class Deep(nn.Module):
        def __init__(self, *, saves: bool) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 64), *(nn.Tanh() for _ in range(6))) for _ in range(6)
            )
            self.saves = saves

        def forward(self, rows: Tensor) -> Tensor:
            for block in self.blocks:
                rows = checkpoint(block, rows, use_reentrant=False) if self.saves else block(rows)
            return rows.sum()

    one = floats(65536, 64)
    peaks = {}
    for saves in (False, True):
        with torch.device("meta"):
            step = Step(model=Deep(saves=saves), inputs=torch.empty(65536, 64))
        peaks[saves] = capture_step(step).tensors_peak_bytes
    # Without: 6 results of tanh in each of 6 blocks are kept. With: one input a block, and the
    # results of the block at work. Up to three more for what is being computed.
    assert 36 * one <= peaks[False] - one <= 39 * one
    assert 11 * one <= peaks[True] - one <= 15 * one


def test_an_expanded_tensor_takes_the_memory_of_its_storage() -> None:
    class Expands(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.empty(1, 1024))

        def forward(self, rows: Tensor) -> Tensor:
            return (self.row.expand(1 << 20, 1024)[:1] * rows).sum()

    step = Step(model=Expands(), inputs=torch.empty(1, 1024), optimizer=plain_sgd)
    assert capture_step(step).calls[0].live_bytes == 2 * floats(1024)


def test_flags_are_counted_in_a_copy_of_wide_integers() -> None:
    """As CUDA does: the copy is 8 bytes for each flag, in memory as long as the sum runs."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1000, 1000))

        def forward(self, rows: Tensor) -> Tensor:
            return (rows * self.weight).amax(1).sum()

    capture = capture_step(Step(model=Counted(), inputs=torch.empty(1000, 1000)))
    index, call = next(
        (index, call) for index, call in enumerate(capture.calls) if len(call.kernels) == 2
    )
    cast, total = call.kernels
    assert (cast.op, total.op) == ("_to_copy", "sum.dim_IntList")
    assert (cast.operands[0].dtype, total.operands[0].dtype) == ("b8", "i64")
    before = capture.calls[index - 1].live_bytes
    assert call.live_bytes - before == pytest.approx(8e6, rel=0.01)
