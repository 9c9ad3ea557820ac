from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cluster import load_cluster
from paceline.lab.layout import lay_out, link_rates_bytes_per_s, parse_slow


def test_the_default_is_two_by_two_at_100_mbit() -> None:
    layout = lay_out()
    assert layout.workers_per_node == (2, 2)
    assert link_rates_bytes_per_s(layout) == (12.5e6, 12.5e6)


def test_numbers_replace_the_clusters() -> None:
    layout = lay_out(nodes=3, workers_per_node="1", link="1gbit")
    assert layout.workers_per_node == (1, 1, 1)
    assert link_rates_bytes_per_s(layout) == (125e6,) * 3


def test_unequal_workers_say_how_many_nodes() -> None:
    assert lay_out(workers_per_node="2,1,3").workers_per_node == (2, 1, 3)
    assert lay_out(nodes=2, workers_per_node="2,1").workers_per_node == (2, 1)


def test_a_file_of_unequal_nodes(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        """\
name = "two"
[[node]]
workers = 2
device = "cpu-core"
inside = { latency = "30 us", bandwidth = "2 GB/s" }
between = { latency = "1 ms", bandwidth = "10 Mbit/s", shared = false }
[[node]]
count = 2
workers = 1
device = "cpu-core"
inside = { latency = "30 us", bandwidth = "2 GB/s" }
between = { latency = "1 ms", bandwidth = "50 Mbit/s" }
"""
    )
    layout = lay_out(cluster=str(file))
    assert layout.workers_per_node == (2, 1, 1)
    # Where each worker has a link of its own, the node's is as fast as all of them.
    assert link_rates_bytes_per_s(layout) == (2.5e6, 6.25e6, 6.25e6)
    with pytest.raises(ValueError, match="2 kinds of node"):
        lay_out(cluster=str(file), nodes=4)


@pytest.mark.parametrize("workers", ["0", "-1", "two", "", "2,0", "2,,1"])
def test_bad_worker_counts(workers: str) -> None:
    with pytest.raises(ValueError, match="a number of at least 1"):
        lay_out(workers_per_node=workers)


def test_workers_that_contradict_nodes() -> None:
    with pytest.raises(ValueError, match="describes 2 nodes but --nodes says 3"):
        lay_out(nodes=3, workers_per_node="2,1")


def test_several_numbers_need_one_kind_of_node() -> None:
    with pytest.raises(ValueError, match="needs a cluster with one kind of node"):
        lay_out(cluster="mixed", workers_per_node="2,1", link="1gbit")


def test_slow_workers() -> None:
    layout = lay_out(workers_per_node="2,1")
    assert parse_slow([], layout) == {}
    assert parse_slow(["1:0=2.0", "0:1=3"], layout) == {(1, 0): 2.0, (0, 1): 3.0}
    assert parse_slow(["1:0=2.0,0:1=3"], layout) == {(1, 0): 2.0, (0, 1): 3.0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1:0", "write NODE:WORKER=FACTOR"),
        ("1=2", "write NODE:WORKER=FACTOR"),
        ("1:0=fast", "write NODE:WORKER=FACTOR"),
        ("1:0=0.5", "between 1 and 100"),
        ("1:0=nan", "between 1 and 100"),
        ("1:1=2", "not there; nodes and workers count from 0, and the nodes have 2, 1 workers"),
        ("2:0=2", "not there"),
        ("-1:0=2", "not there"),
    ],
)
def test_bad_slow_workers(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_slow([text], lay_out(workers_per_node="2,1"))


def test_a_preset_keeps_its_own_numbers() -> None:
    assert lay_out(cluster="ethernet-10g") == load_cluster("ethernet-10g")


def test_a_link_faster_than_any_lab() -> None:
    with pytest.raises(ValueError, match=r"up to 10 Gbit/s, and 'mixed' asks for 25 Gbit/s; set"):
        lay_out(cluster="mixed")
    assert set(link_rates_bytes_per_s(lay_out(cluster="mixed", link="1gbit"))) == {125e6}
