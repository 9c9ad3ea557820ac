"""Compiled steps: fusion on graphs small enough to count by hand, and whole networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.rehearse import predict
from paceline.rehearse.compiled import compile_step
from paceline.rehearse.fusion import fuse, moved_bytes
from paceline.rehearse.padding import padded
from paceline.rehearse.parts import Part, Read
from paceline.steps import Capture, Kernel, Operand, Step, capture_step, zoo_step

MEASURED = Path(__file__).parents[2] / "docs/results/compiled_steps.json"
ROWS, WIDTH, FLOAT = 64, 128, 4
TENSOR = ROWS * WIDTH * FLOAT


class Chain(nn.Module):
    """Two products with a chain of pointwise operations, or a norm, between them."""

    def __init__(self, *, with_norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH) if with_norm else None
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch)
        hidden = self.norm(hidden) if self.norm else functional.relu(hidden) * 3 + 1
        result: Tensor = self.second(hidden)
        return result


def compiled_chain(*, with_norm: bool = False) -> Capture:
    model = Chain(with_norm=with_norm)
    return compile_step(
        Step(
            model=model,
            inputs=torch.empty(ROWS, WIDTH),
            targets=torch.empty(ROWS, WIDTH),
            loss=lambda output, _: output.sum(),
        )
    )


def fused(capture: Capture, phase: str) -> list[tuple[list[int], list[int]]]:
    return [
        ([each.num_bytes for each in k.operands], [each.num_bytes for each in k.outputs])
        for call in capture.calls
        if call.phase == phase
        for k in call.kernels
        if k.op == "fused"
    ]


def test_a_chain_is_one_kernel_that_moves_its_ends_alone() -> None:
    capture = compiled_chain()
    # relu, * 3 and + 1: reads the product, writes what the second product reads.
    assert fused(capture, "forward") == [([TENSOR], [TENSOR])]
    # The gradient and the product, from which relu's sign is found again.
    ((reads, writes),) = fused(capture, "backward")
    assert (sorted(reads), writes) == ([TENSOR, TENSOR], [TENSOR])


def test_a_norm_is_one_kernel_forward_and_one_backward_with_sums_of_its_weights() -> None:
    capture = compiled_chain(with_norm=True)
    ((reads, writes),) = fused(capture, "forward")
    assert sorted(reads)[-1] == TENSOR
    assert sum(reads) == TENSOR + 2 * WIDTH * FLOAT  # weight and bias
    assert sum(writes) == TENSOR + 2 * ROWS * FLOAT  # mean and deviation of each row
    (call,) = [call for call in capture.calls if call.phase == "backward" and call.op == "fused"]
    assert [kernel.op for kernel in call.kernels] == ["fused"] + 2 * ["sum.dim_IntList"]
    assert sum(each.num_bytes >= TENSOR for each in call.kernels[0].operands) == 2


def test_the_loss_and_the_optimizer_stay_eager() -> None:
    eager = capture_step(zoo_step("small-gpt", batch=2))
    compiled = compile_step(zoo_step("small-gpt", batch=2))
    for op in ("_log_softmax", "nll_loss_forward", "_log_softmax_backward_data"):
        assert op in [kernel.op for kernel in compiled.kernels()]
    own, other = (
        [call for call in capture.calls if call.phase == "optimizer"]
        for capture in (eager, compiled)
    )
    assert own == other


def test_loops_that_wait_for_each_other_through_a_product_stay_apart() -> None:
    def loop(call: int, *reads: str, writes: str) -> Part:
        return Part(
            call, "forward", "pointwise", 8, tuple(Read(r, 0, 32) for r in reads), {writes: 32}
        )

    product = Part(1, "forward", "library", 0, (Read("a", 0, 32),), {"m": 32})
    last = Part(3, "forward", "library", 0, (Read("b", 0, 32), Read("c", 0, 32)), {"end": 32})
    parts = [
        loop(0, "x", writes="a"),
        product,
        loop(2, "a", "m", writes="b"),
        loop(2, "a", writes="c"),
        last,
    ]
    groups = fuse(parts)
    held = [sorted(str(value) for part in group.parts for value in part.writes) for group in groups]
    assert held == [["a"], ["m"], ["b", "c"], ["end"]]
    assert moved_bytes(groups)[0] == ([32], [32])  # x; a
    assert moved_bytes(groups)[2] == ([32, 32], [32, 32])  # a and m, each once; b and c


@pytest.mark.parametrize("name", ["small-cnn", "small-gpt"])
def test_gradients_are_ready_in_order_and_before_the_optimizer(name: str) -> None:
    eager = capture_step(zoo_step(name, batch=2))
    compiled = compile_step(zoo_step(name, batch=2))
    assert [each.parameter for each in compiled.gradients] == [
        each.parameter for each in eager.gradients
    ]
    places = [each.after_call for each in compiled.gradients]
    assert places == sorted(places)
    num_forward = sum(call.phase == "forward" for call in compiled.calls)
    num_before = sum(call.phase != "optimizer" for call in compiled.calls)
    assert num_forward < places[0] < places[-1] <= num_before
    assert len(list(compiled.kernels())) < len(list(eager.kernels()))


def test_ordinary_convolutions_become_channels_last() -> None:
    kernels = list(compile_step(zoo_step("resnet18", batch=2)).kernels())
    images = [kernel.operands[0] for kernel in kernels if kernel.op == "convolution"]
    assert all(image.is_channels_last for image in images[1:])


def test_products_that_arithmetic_limits_are_padded() -> None:
    left, right = Operand("bf16", (4096, 768)), Operand("bf16", (768, 50257), (1, 768))
    kernel = Kernel("mm", (left, right), outputs=(Operand("bf16", (4096, 50257)),))
    wide = padded(kernel)
    assert wide.operands == (left, Operand("bf16", (768, 50264), (1, 768)))
    assert wide.outputs == (Operand("bf16", (4096, 50264)),)
    assert padded(wide) is wide
    bias = Operand("bf16", (50257,))
    assert padded(Kernel("addmm", (bias, left, right), outputs=kernel.outputs)).operands[0] == (
        Operand("bf16", (50264,))
    )
    narrow = Kernel(
        "mm", (left, Operand("bf16", (768, 10))), outputs=(Operand("bf16", (4096, 10)),)
    )
    assert padded(narrow) is narrow


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_the_ratio_is_near_the_measured_one(name: str) -> None:
    (row,) = [each for each in json.loads(MEASURED.read_text())["steps"] if each["network"] == name]
    step = zoo_step(name, batch=row["batch"], precision="bf16")
    ratio = predict(step, compiled=True).compiled_ratio
    assert ratio == pytest.approx(row["compiled"]["step_s"] / row["eager"]["step_s"], abs=0.08)


def test_what_cannot_be_compiled_is_said() -> None:
    step = zoo_step("mlp", batch=4)
    with pytest.raises(ValueError, match="GPUs alone"):
        predict(step, device="cpu", compiled=True)
    with pytest.raises(ValueError, match="the step itself"):
        predict(capture_step(step), compiled=True)
    assert predict(step).compiled_ratio is None
    assert "compiled_ratio" not in predict(step).to_dict()
