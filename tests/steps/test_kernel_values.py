"""Kernels and operands as values: equality, bytes, and their way through JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.steps import Kernel, Operand
from paceline.steps.canonical import TORCH_DTYPES, operand
from paceline.steps.kernel import DTYPE_BYTES

sizes = st.integers(0, 1 << 40)
shapes = st.lists(sizes, max_size=5).map(tuple)


@st.composite
def operands(draw: st.DrawFn) -> Operand:
    shape = draw(shapes)
    strides = st.lists(sizes, min_size=len(shape), max_size=len(shape)).map(tuple)
    return Operand(draw(st.sampled_from(list(DTYPE_BYTES))), shape, draw(st.none() | strides))


words = st.from_regex(r"[a-z][a-z0-9_:.]{0,12}", fullmatch=True)
plain: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words | operands()
)
arguments = st.recursive(plain, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)
kernels = st.builds(
    Kernel,
    words,
    st.lists(arguments, max_size=5).map(tuple),
    st.sampled_from(["", "tf32"]),
    st.lists(operands(), max_size=3).map(tuple),
)


@given(operands())
def test_an_operand_survives_its_text(each: Operand) -> None:
    assert Operand.from_text(each.to_text()) == each


@given(kernels)
def test_a_kernel_survives_json(kernel: Kernel) -> None:
    parts = json.loads(json.dumps(kernel.to_parts()))
    again = Kernel.from_parts(parts)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert again.outputs == kernel.outputs
    assert repr(again) == repr(kernel)  # 1 and True and 1.0 are equal, and not the same


def test_outputs_follow_from_the_rest_and_do_not_count() -> None:
    one, other = (Kernel("relu", (Operand("f32", (4,)),), outputs=(each,)) for each in _TWO)
    assert one == other
    assert len({one, other}) == 1
    assert one != Kernel("relu", one.args, "tf32", one.outputs)


_TWO = (Operand("f32", (4,)), Operand("f32", (5,)))


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_sizes_of_dtypes_are_pytorchs(name: str) -> None:
    assert DTYPE_BYTES[name] == torch.empty((), dtype=TORCH_DTYPES[name]).element_size()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_bytes_of_an_operand_are_the_elements_it_can_reach(
    shape: list[int], data: st.DataObject
) -> None:
    tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    order = data.draw(st.permutations(range(len(shape))))
    widths = data.draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    moved = tensor.permute(*order)
    expanded = moved.expand(
        [width if size == 1 else size for size, width in zip(moved.shape, widths, strict=True)]
    )
    each = operand(expanded)
    assert each.shape == tuple(expanded.shape)
    assert each.numel == expanded.numel()
    assert each.num_bytes == 4 * len(set(expanded.flatten().tolist()))
    assert (each.strides is None) == expanded.is_contiguous()


def test_channels_last_is_seen_in_strides() -> None:
    images = torch.empty(2, 3, 5, 7)
    assert not operand(images).is_channels_last
    assert operand(images.contiguous(memory_format=torch.channels_last)).is_channels_last
    assert not operand(torch.empty(4, 6).t()).is_channels_last


def test_bytes_of_a_kernel_are_what_it_reads_and_writes() -> None:
    row, table = Operand("bf16", (8,)), Operand("f32", (4, 8))
    kernel = Kernel("op", (table, (row, 3, (row,)), ("out", table)), outputs=(row,))
    assert kernel.operands == (table, row, row, table)
    assert kernel.num_bytes == 2 * 128 + 3 * 16
