"""Kernels of captures, run for real on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.cluster.device import Precision
from paceline.measure.runner import make_operand, prepare
from paceline.steps import Kernel, Operand, Step, capture_step, zoo_step
from paceline.steps.canonical import operand
from paceline.steps.step import MemoryFormat

CPU = torch.device("cpu")


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)


def check_runs(kernel: Kernel) -> None:
    """It runs, twice, and writes what the capture says that it writes."""
    run = prepare(kernel, CPU)
    run()
    with torch.no_grad():
        written = [operand(each) for each in tensors(run())]
    wanted = [(each.dtype, each.shape) for each in kernel.outputs]
    assert [(each.dtype, each.shape) for each in written][: len(wanted)] == wanted, kernel
    assert bool(written) == bool(wanted), kernel


class Many(nn.Module):
    """What the small networks do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.AvgPool2d(2),
            nn.Dropout(0.1),
            nn.AdaptiveAvgPool2d(2),
        )
        self.rows = nn.Sequential(nn.Linear(16, 12), nn.LayerNorm(12), nn.GELU(), nn.Softmax(-1))
        self.table = nn.Embedding(9, 12)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        rows = self.rows(self.image(images).flatten(1))
        chosen = self.table(tokens)
        picked = torch.gather(rows, 1, tokens % 12)
        joined = torch.cat([rows, chosen.mean(1), picked], 1)
        loss: Tensor = (joined**2).mean() + joined.amax(1).sum() + joined.std()
        return loss


def many_step(memory_format: MemoryFormat) -> Step:
    return Step(
        model=Many(),
        inputs=(torch.randn(3, 4, 16, 16), torch.zeros(3, 5, dtype=torch.int64)),
        optimizer=torch.optim.AdamW,
        memory_format=memory_format,
    )


def steps() -> Iterator[tuple[str, Step]]:
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for name in ("small-cnn", "small-gpt", "mlp"):
        for precision in precisions:
            yield f"{name} {precision}", zoo_step(name, batch=2, precision=precision)
    yield "small-cnn last", zoo_step("small-cnn", batch=2, memory_format="channels_last")
    yield "mlp adam", zoo_step("mlp", batch=2, optimizer="adam")
    yield "many", many_step("contiguous")
    yield "many last", many_step("channels_last")


STEPS = dict(steps())


@pytest.mark.parametrize("name", STEPS)
def test_every_kernel_of_a_step_runs_and_writes_what_was_recorded(name: str) -> None:
    torch.manual_seed(0)
    kernels = dict.fromkeys(capture_step(STEPS[name]).kernels())
    assert len(kernels) > 15
    for kernel in kernels:
        check_runs(kernel)


@pytest.mark.parametrize(
    "spec",
    [
        Operand("f32", (3, 4)),
        Operand("bf16", (2, 3, 4, 5), (60, 1, 15, 3)),
        Operand("f32", (6, 4), (0, 1)),
        Operand("f16", (4, 3), (1, 4)),
        Operand("i64", (50,)),
        Operand("b8", (50,)),
        Operand("c64", (5,)),
        Operand("u8", ()),
        Operand("f32", (0, 3)),
    ],
    ids=lambda spec: spec.to_text(),
)
def test_an_operand_is_made_as_described(spec: Operand) -> None:
    made = make_operand(spec, CPU, below=7)
    assert operand(made) == spec
    if made.is_floating_point() and made.numel():
        assert made.float().min() >= 0.5  # never zeros
        assert made.float().max() <= 1.5
    if spec.dtype == "i64":
        assert set(made.tolist()) == set(range(7))


def test_indices_stay_below_what_they_index() -> None:
    table, tokens = Operand("f32", (3, 8)), Operand("i64", (400,))
    rows = Operand("f32", (400, 8))
    check_runs(Kernel("embedding", (table, tokens), outputs=(rows,)))
    check_runs(Kernel("index_select", (table, 0, tokens), outputs=(rows,)))
    logits, classes = Operand("f32", (400, 2)), Operand("i64", (400,))
    scalar = Operand("f32", ())
    check_runs(
        Kernel("nll_loss_forward", (logits, classes, None, 1, -100), outputs=(scalar, scalar))
    )


def test_a_learned_bias_has_a_gradient() -> None:
    rows, bias = Operand("f32", (2, 2, 8, 4)), Operand("f32", (2, 2, 8, 8))
    args = (rows, rows, rows, bias, False, False)
    check_runs(Kernel("attention_backward", args, outputs=(rows, rows, rows, bias)))


def test_dropout_in_attention_runs() -> None:
    rows = Operand("f32", (1, 2, 6, 4))
    for name, outputs in (("attention", 1), ("attention_backward", 3)):
        check_runs(Kernel(name, (rows, rows, rows, None, True, False), outputs=(rows,) * outputs))


def test_elements_picked_along_rows_are_neighbours() -> None:
    rows = Operand("f32", (6, 40, 512))
    shared = Operand("i64", (6, 40, 384), (0, 384, 1))
    picked = Operand("f32", (6, 40, 384))
    check_runs(Kernel("gather", (rows, -1, shared), outputs=(picked,)))
    # Positions ascend, so that no two of a row's elements are added to the same place.
    added = prepare(Kernel("scatter_add", (rows, -1, shared, picked), outputs=(rows,)), CPU)()
    assert int((added > 1.5).sum(-1).max()) <= 384


def test_images_are_sampled_at_places_side_by_side() -> None:
    image, grid = Operand("f32", (2, 3, 16, 16)), Operand("f32", (2, 8, 8, 2))
    made = Operand("f32", (2, 3, 8, 8))
    sampled = Kernel("grid_sampler_2d", (image, grid, 0, 0, False), outputs=(made,))
    check_runs(sampled)
    assert prepare(sampled, CPU)().min() > 0  # none lies outside, where nothing is read
    args = (made, image, grid, 0, 0, False, (True, True))
    check_runs(Kernel("grid_sampler_2d_backward", args, outputs=(image, grid)))
