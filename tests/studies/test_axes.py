from __future__ import annotations

from typing import Any

import pytest

from paceline.cluster import load_cluster
from paceline.studies.axes import make_axes

H200 = load_cluster("dgx-h200")  # nodes of eight


def test_ranges_as_a_user_writes_them() -> None:
    axes = make_axes(
        H200, 32, workers="1:64", link="1gbit:16gbit", batches="8:100", arithmetic="0.5:2"
    )
    assert axes.workers[:8] == (1, 2, 3, 4, 5, 6, 7, 8)
    assert all(count % 8 == 0 for count in axes.workers[7:])
    assert axes.workers[-1] == 64
    assert axes.link[0] == 1e9 / 8
    assert axes.link[-1] == pytest.approx(16e9 / 8)
    assert len(axes.link) == 17  # four per doubling
    assert axes.batch == (8, 16, 32, 64, 100)
    assert axes.arithmetic[0] == 0.5


def test_one_value_and_lists() -> None:
    axes = make_axes(H200, 32, workers=[16, 8, 16], batches="64", link=[1e9])
    assert axes.workers == (8, 16)
    assert axes.batch == (64,)
    assert axes.link == (1e9,)


def test_defaults_go_through_the_cluster() -> None:
    axes = make_axes(H200, 48)
    link = H200.node_kinds[0].between.bandwidth_bytes_per_s
    assert min(axes.link) < link < max(axes.link)
    assert 48 in axes.batch
    assert max(axes.workers) >= 1024


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"workers": "1:many"}, "--workers 1:many is not a range"),
        ({"workers": "8:1"}, "begins above its end"),
        ({"link": "1:800"}, "--link 1:800 is not a range"),
        ({"batches": "0:8"}, "above 0"),
        ({"arithmetic": []}, "above 0"),
    ],
)
def test_bad_ranges_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_axes(H200, 32, **given)


def test_a_cluster_of_unequal_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="equal nodes"):
        make_axes(load_cluster("mixed"), 32)
