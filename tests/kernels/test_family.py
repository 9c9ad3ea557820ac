"""Families of kernels, and their work against PyTorch's own counter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from paceline.kernels.family import FAMILIES, bytes_of, family_of, flop_of, multiplies
from paceline.kernels.features import features_of
from paceline.kernels.library import load_kernel_model
from paceline.steps import Kernel, Operand, Step, capture_step, zoo_step


class Summed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        total: Tensor = self.inner(*args).sum()
        return total


class Product(nn.Module):
    """A product of a parameter and the input, whatever their dimensions."""

    def __init__(self, *shape: int, by: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(shape))
        self.by = by

    def forward(self, rows: Tensor) -> Tensor:
        return self.by(self.factor, rows * self.factor.mean())  # both have a gradient


IMAGE = torch.randn(2, 8, 13, 11)
CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "convolution": (nn.Conv2d(8, 12, 3), IMAGE),
    "padded": (nn.Conv2d(8, 12, (5, 3), padding=2), IMAGE),
    "strided": (nn.Conv2d(8, 12, 3, stride=2, padding=1), IMAGE),
    "dilated": (nn.Conv2d(8, 12, 3, dilation=2), IMAGE),
    "transposed": (nn.ConvTranspose2d(8, 6, 3, stride=2), IMAGE),
    "one dimension": (nn.Conv1d(8, 5, 3), IMAGE[..., 0]),
    "three dimensions": (nn.Conv3d(2, 5, 3), torch.randn(1, 2, 6, 7, 8)),
    "two layers": (nn.Sequential(nn.Conv2d(8, 4, 3), nn.Conv2d(4, 6, 3, bias=False)), IMAGE),
    "linear": (nn.Linear(11, 7), IMAGE),
    "linear, no bias": (nn.Linear(11, 7, bias=False), IMAGE[0, 0]),
    "batched product": (Product(5, 6, 7), torch.randn(5, 7, 3)),
}


def counted(model: nn.Module, inputs: Tensor) -> int:
    """FLOP of a forward and a backward pass that really run."""
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    return int(counter.get_total_flops())


def captured(model: nn.Module, inputs: Tensor) -> float:
    capture = capture_step(Step(model=Summed(model), inputs=inputs))
    return sum(flop_of(k) for k in capture.kernels() if multiplies(family_of(k)))


@pytest.mark.parametrize("case", CASES)
def test_flop_are_those_of_pytorchs_counter(case: str) -> None:
    model, inputs = CASES[case]
    assert captured(model, inputs) == counted(model, inputs) > 0


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize(("groups", "filters"), [(2, 6), (4, 12), (8, 8)])
def test_a_grouped_convolution_is_many_small_ones(
    kind: type[nn.Conv2d | nn.ConvTranspose2d], groups: int, filters: int
) -> None:
    # PyTorch's counter takes every gradient of a weight for that of an ungrouped convolution.
    whole = kind(8, filters, 3, stride=2, groups=groups)
    one = kind(8 // groups, filters // groups, 3, stride=2)
    assert captured(whole, IMAGE) == groups * counted(one, IMAGE[:, : 8 // groups])


@pytest.mark.parametrize(
    ("shape", "other", "by"),
    [
        ((6, 7), (7,), torch.mv),
        ((4, 5), (3, 4, 5), lambda a, b: torch.addbmm(a, b, torch.ones(3, 5, 5))),
    ],
    ids=["mv", "addbmm"],
)
def test_flop_of_rarer_products_are_two_for_each_multiplication(
    shape: tuple[int, ...], other: tuple[int, ...], by: Callable[[Tensor, Tensor], Tensor]
) -> None:
    step = Step(model=Summed(Product(*shape, by=by)), inputs=torch.randn(other))
    forward = [
        kernel
        for call in capture_step(step).calls
        if call.phase == "forward"
        for kernel in call.kernels
        if multiplies(family_of(kernel))
    ]
    wanted = {"mv": 2 * 6 * 7, "addbmm": 2 * 3 * 4 * 5 * 5}
    assert {kernel.op: flop_of(kernel) for kernel in forward} == {
        kernel.op: wanted[kernel.op] for kernel in forward
    }
    assert len(forward) == 1


def kernels_of(model: nn.Module, inputs: Tensor) -> dict[str, Kernel]:
    """The first kernel of each operator in a step."""
    capture = capture_step(Step(model=Summed(model), inputs=inputs))
    return {kernel.op: kernel for kernel in reversed(list(capture.kernels()))}


class Spectrum(nn.Module):
    """Filters rows by their spectrum, and images too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.linear(rows)
        filtered: Tensor = torch.fft.irfft(torch.fft.rfft(rows, dim=1) * 0.5, n=32, dim=1)
        whole: Tensor = torch.fft.fft2(rows.to(torch.complex64)).real
        return filtered + whole


def test_fourier_transforms_have_their_flop_and_bytes_and_no_family() -> None:
    kernels = kernels_of(Spectrum(), torch.randn(4, 32, 64))
    points = 4 * 32 * 64
    assert flop_of(kernels["_fft_r2c"]) == 2.5 * points * 5
    assert flop_of(kernels["_fft_c2r"]) == 2.5 * points * 5
    assert flop_of(kernels["_fft_c2c"]) == 5 * points * 11
    half = 4 * 17 * 64 * 8
    assert bytes_of(kernels["_fft_r2c"]) == 4 * points + half
    assert bytes_of(kernels["_fft_c2r"]) == 4 * points + half
    assert bytes_of(kernels["_fft_c2c"]) == 2 * 8 * points
    unknown = {op for op, kernel in kernels.items() if family_of(kernel) is None}
    assert {"_fft_r2c", "_fft_c2r", "_fft_c2c"} <= unknown


@pytest.mark.parametrize("by", [torch.dot, torch.vdot])
def test_a_dot_product_is_a_reduction(by: Callable[[Tensor, Tensor], Tensor]) -> None:
    kernel = kernels_of(Product(70, by=by), torch.randn(70))[by.__name__]
    assert family_of(kernel) == "reduction"
    assert flop_of(kernel) == 2 * 70
    assert bytes_of(kernel) == 4 * (70 + 70 + 1)
    assert load_kernel_model("h200").estimate([kernel])[0].origin == "mlp"


@pytest.mark.parametrize(
    ("layer", "dim", "rows", "columns"),
    [
        (nn.Conv2d(8, 12, 3), 0, 12, 8 * 9),
        (nn.Linear(11, 7), 0, 7, 11),
        (nn.Linear(11, 7), 1, 11, 7),
    ],
    ids=["convolution", "rows", "columns"],
)
def test_weight_norm_is_a_norm_of_as_many_rows_as_it_keeps_norms(
    layer: nn.Module, dim: int, rows: int, columns: int
) -> None:
    kernels = kernels_of(nn.utils.parametrizations.weight_norm(layer, dim=dim), IMAGE)
    for op in ("_weight_norm_interface", "_weight_norm_interface_backward"):
        assert family_of(kernels[op]) == "layer_norm"
        features = features_of([kernels[op]], "layer_norm")[0]
        assert list(features[8:10]) == pytest.approx([math.log2(rows), math.log2(columns)])
        estimate = load_kernel_model("h200").estimate([kernels[op]])[0]
        assert estimate.origin == "mlp"
        assert estimate.uncertainty < 2.0  # so small a weight is outside of what was measured


def attention(*, causal: bool, backward: bool = False) -> Kernel:
    query, key = Operand("f32", (2, 3, 40, 16)), Operand("f32", (2, 3, 56, 16))
    name = "attention_backward" if backward else "attention"
    return Kernel(name, (query, key, key, None, False, causal), outputs=(query,))


def test_flop_of_attention_are_those_of_pytorchs_counter_and_half_if_causal() -> None:
    q, kv = (2, 3, 40, 16), (2, 3, 56, 16)
    there = sdpa_flop_count(q, kv, kv)  # type: ignore[no-untyped-call]
    back = sdpa_backward_flop_count(q, q, kv, kv)  # type: ignore[no-untyped-call]
    assert flop_of(attention(causal=False)) == there
    assert flop_of(attention(causal=True)) == there / 2
    assert flop_of(attention(causal=False, backward=True)) == back
    assert flop_of(attention(causal=True, backward=True)) == back / 2


@pytest.mark.parametrize("name", ["small-cnn", "convnext-t", "small-gpt"])
def test_every_kernel_of_autocast_and_adamw_has_a_family(name: str) -> None:
    capture = capture_step(zoo_step(name, batch=2, precision="fp16", optimizer="adamw"))
    families = {family_of(kernel) for kernel in capture.kernels()}
    assert families <= set(FAMILIES)
    assert {"optimizer", "softmax", "matmul", "pointwise"} <= families


ROW = Operand("f32", (8,))


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("convolution", "convolution"),
        ("convolution_backward_weight", "convolution_backward_weight"),
        ("addmm", "matmul"),
        ("native_group_norm_backward", "layer_norm"),
        ("add.Tensor", "pointwise"),
        ("add_.Tensor", "pointwise"),
        ("gelu_backward", "pointwise"),
        ("threshold_backward", "pointwise"),
        ("mean.dim", "reduction"),
        ("_foreach_add_.List", "optimizer"),
        ("_fused_adamw_", "optimizer"),
        ("_fused_sgd_", "optimizer"),
        ("_fused_rms_norm", "layer_norm"),
        ("index.Tensor", "embedding"),
        ("dot", "reduction"),
        ("vdot", "reduction"),
        ("_weight_norm_interface", "layer_norm"),
        ("_weight_norm_interface_backward", "layer_norm"),
        ("mkldnn_rnn_layer", None),
        ("_fft_r2c", None),
        ("nosuchoperator", None),
    ],
)
def test_families_by_operator(op: str, family: str | None) -> None:
    assert family_of(Kernel(op, (ROW,), outputs=(ROW,))) == family


def test_bytes_are_those_of_operands_and_outputs() -> None:
    big, small = Operand("bf16", (64, 32)), Operand("f32", (32,))
    assert bytes_of(Kernel("add.Tensor", (big, small), outputs=(big,))) == 2 * 4096 + 128
    assert bytes_of(Kernel("full", ((), 0.5), outputs=())) == 1


def test_a_lookup_reads_the_rows_asked_for_not_the_table() -> None:
    table, indices = Operand("f32", (100_000, 64)), Operand("i64", (10,))
    rows = Operand("f32", (10, 64))
    assert bytes_of(Kernel("embedding", (table, indices), outputs=(rows,))) == 2 * 2560 + 80


def test_a_foreach_in_place_writes_its_first_list() -> None:
    listed: tuple[Any, ...] = (ROW, ROW, ROW)
    assert bytes_of(Kernel("_foreach_add_.List", (listed, listed))) == 3 * 3 * 32
    assert bytes_of(Kernel("_foreach_add.List", (listed, listed), outputs=listed)) == 3 * 3 * 32
