"""How parameters are cut into fragments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference_delayed
from paceline.strategies import Replica


def fragment_sizes(sizes: list[int], count: int) -> list[list[int]]:
    """The sizes of the parameters in each fragment."""
    model = nn.ParameterList([torch.zeros(size) for size in sizes])
    fragments = Replica(model, buffers="keep").fragments(count)
    return [[tensor.numel() for layout in part for tensor in layout.tensors] for part in fragments]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.integers(1, len(sizes)))
    )
)
def test_fragments_hold_everything_once_and_none_is_empty(case: tuple[list[int], int]) -> None:
    sizes, count = case
    parts = fragment_sizes(sizes, count)
    assert len(parts) == count
    assert all(parts)
    assert [size for part in parts for size in part] == sizes
    assert parts == [
        sizes[places.start : places.stop] for places in reference_delayed.cut(sizes, count)
    ]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8))
def test_equal_parameters_make_even_fragments(count: int, each: int) -> None:
    assert fragment_sizes([3] * (count * each), count) == [[3] * each] * count


def test_more_fragments_than_parameters() -> None:
    with pytest.raises(ValueError, match="3 fragments are more than the model's 2"):
        fragment_sizes([5, 5], 3)
