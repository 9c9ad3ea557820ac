from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster import (
    Cluster,
    Device,
    Link,
    Node,
    dump_cluster,
    load_cluster,
    load_device,
    parse_cluster,
)
from paceline.cluster.device import PRECISIONS

GOOD = """\
name = "two-rooms"
description = "Two kinds of node"

[device.my-gpu]
memory = "16 GB"
memory_bandwidth = "900 GB/s"
flops = { fp32 = "15.7 TFLOP/s", fp16 = "125 TFLOP/s" }

[between]
latency = "20 us"
bandwidth = "10 Gbit/s"
shared = true

[[node]]
name = "big"
count = 2
workers = 4
device = "my-gpu"
price_per_hour = 24.48
[node.inside]
latency = "5 us"
bandwidth = "25 GB/s"

[[node]]
workers = 1
device = "t4"
[node.inside]
latency = "0 s"
bandwidth = "16 GB/s"
[node.between]
latency = "1 ms"
bandwidth = "100mbit"
shared = false
"""


def test_a_file_is_read_with_its_defaults() -> None:
    cluster = parse_cluster(GOOD, "rooms.toml")
    big, small = cluster.node_kinds
    assert cluster.workers_per_node == (4, 4, 1)
    assert big.device.flops == {"fp32": 15.7e12, "fp16": 125e12}
    assert big.between == Link(latency_s=20e-6, bandwidth_bytes_per_s=1.25e9, shared=True)
    assert big.inside == Link(latency_s=5e-6, bandwidth_bytes_per_s=25e9, shared=False)
    assert big.price_per_hour == 24.48
    assert small.name == "1xt4"
    assert small.device == load_device("t4")
    assert small.between == Link(latency_s=1e-3, bandwidth_bytes_per_s=12.5e6, shared=False)
    assert cluster.price_per_hour is None


def test_between_is_shared_and_inside_is_not_unless_the_file_says_so() -> None:
    cluster = parse_cluster(GOOD.replace("shared = true\n", ""), "rooms.toml")
    assert cluster.node_kinds[0].between.shared
    assert not cluster.node_kinds[0].inside.shared


def test_half_of_the_bandwidth_is_read_and_written() -> None:
    text = GOOD.replace("shared = true", 'shared = true\nhalf_bandwidth_at = "64 KiB"')
    cluster = parse_cluster(text, "rooms.toml")
    assert [node.between.half_bytes for node in cluster.node_kinds] == [65536, 0]
    assert dump_cluster(cluster).count("half_bandwidth_at") == 1
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def test_interference_is_read_and_written() -> None:
    own = "shared = true\ninterference = 0.6\nlone_interference = 0.0\n"
    own += "busy_factor = 3.5\nlone_busy_factor = 1"
    cluster = parse_cluster(GOOD.replace("shared = true", own), "rooms.toml")
    assert [node.between.busy_factor for node in cluster.node_kinds] == [3.5, 1.0]
    assert [node.between.lone_busy_factor for node in cluster.node_kinds] == [1.0, None]
    assert [node.between.interference for node in cluster.node_kinds] == [0.6, 0.0]
    assert [node.between.lone_interference for node in cluster.node_kinds] == [0.0, None]
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def test_an_own_device_goes_before_a_built_in_one() -> None:
    cluster = parse_cluster(GOOD.replace("my-gpu", "v100-32gb"), "rooms.toml")
    assert cluster.node_kinds[0].device.memory_bytes == 16 * 10**9
    assert load_device("v100-32gb").memory_bytes == 32 * 10**9
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


BAD = [
    ('name = "two-rooms"', 'name = "two-rooms', "not valid TOML", "line 1"),
    ("workers = 4", "wrokers = 4", "node[0].wrokers", "did you mean 'workers'"),
    ("shared = true", "share = true", "between.share", "did you mean 'shared'"),
    ("[between]", "[beetween]", "beetween", "did you mean 'between'"),
    ("memory =", "ram =", "device.my-gpu.ram", "known are memory, memory_bandwidth, flops, source"),
    ("fp16 =", "fp8 =", "device.my-gpu.flops.fp8", "'fp32' or 'fp16'"),
    ("workers = 4\n", "", "node[0].workers", "whole number of at least 1"),
    ('name = "two-rooms"\n', "", "name is missing", "a text in quotes"),
    ('bandwidth = "25 GB/s"\n', "", "node[0].inside.bandwidth", "such as '10 Gbit/s'"),
    ('device = "t4"\n', "", "node[1].device", "is missing"),
    ("[node.inside]", "[node.between]", "node[0].inside is missing", "keys latency, bandwidth,"),
    ('"25 GB/s"', '"-25 GB/s"', "node[0].inside.bandwidth", "is negative: write '100 Mbit/s'"),
    ('"25 GB/s"', '"100 Mb"', "node[0].inside.bandwidth", "'100 Mbit/s' for bits or '100 MB/s'"),
    ('"25 GB/s"', "25", "node[0].inside.bandwidth", "has no unit: write"),
    ('"25 GB/s"', "nan", "node[0].inside.bandwidth", "has no unit: write"),
    ('"100mbit"', '"0 MB/s"', "node[1].between.bandwidth", "is zero: write"),
    ('"5 us"', '"5 m"', "node[0].inside.latency", "'5 us', '5 ms' or '5 s'"),
    ('"5 us"', '"-5 us"', "node[0].inside.latency", "is negative"),
    ('"16 GB"\n', '"16 Gb"\n', "device.my-gpu.memory", "'16 GB' or '16 GiB'"),
    ('"125 TFLOP/s"', '"125 TFLOPS"', "device.my-gpu.flops.fp16", "'125 TFLOP/s'"),
    ('device = "t4"', 'device = "t5"', "node[1].device", "did you mean 't4'"),
    ('device = "t4"', 'device = "abacus"', "node[1].device", "known are my-gpu, v100"),
    ('device = "t4"', "device = 4", "node[1].device", "a device's name in quotes, not 4"),
    ("workers = 4", "workers = 0", "node[0].workers", "at least 1, not 0"),
    ("workers = 4", "workers = -2", "node[0].workers", "at least 1, not -2"),
    ("workers = 4", 'workers = "4"', "node[0].workers", "at least 1, not '4'"),
    ("workers = 4", "workers = true", "node[0].workers", "at least 1, not True"),
    ("count = 2", "count = 2.5", "node[0].count", "at least 1, not 2.5"),
    ("shared = true", "shared = 1", "between.shared", "true or false, not 1"),
    ("shared = true", "half_bandwidth_at = 4", "between.half_bandwidth_at", "has no unit: write"),
    ("shared = true", "interference = 1", "between.interference", "0 to below 1"),
    ("shared = true", "lone_interference = -0.1", "between.lone_interference", "0 to below 1"),
    ("shared = true", "busy_factor = 0.5", "between.busy_factor", "at least 1"),
    ("shared = true", "lone_busy_factor = true", "between.lone_busy_factor", "at least 1"),
    ("24.48", '"24.48"', "node[0].price_per_hour", "number of US dollars such as 24.48"),
    ("24.48", "-1", "node[0].price_per_hour", "number of US dollars such as 24.48"),
    ("24.48", "inf", "node[0].price_per_hour", "number of US dollars such as 24.48"),
    ("24.48", "nan", "node[0].price_per_hour", "number of US dollars such as 24.48"),
    ("[device.my-gpu]", "[other]\n[device.my-gpu]", "other is not a known key", "known are name"),
    ("[device.my-gpu]", '[device.""]', "device.''.name", "a text in quotes that is not empty"),
    ("[device.my-gpu]", "[device]", "device.memory", "has to be a table"),
    ('flops = { fp32 = "15.7 TFLOP/s", fp16 = "125 TFLOP/s" }', "flops = {}", ".flops", "fp32 ="),
    ("[device.my-gpu]", "node = 3\n[device.my-gpu]", "not valid TOML", "line"),
    ('description = "Two kinds of node"', "description = 3", "description", "text in quotes"),
]


@pytest.mark.parametrize(("old", "new", "key", "accepted"), BAD)
def test_a_bad_file_is_reported_in_one_sentence(
    old: str, new: str, key: str, accepted: str
) -> None:
    assert old in GOOD
    with pytest.raises(ValueError) as caught:
        parse_cluster(GOOD.replace(old, new, 1), "rooms.toml")
    sentence = str(caught.value)
    assert sentence.startswith("rooms.toml: ")
    assert key in sentence
    assert accepted in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("text", ['name = "a"', 'name = "a"\nnode = []', 'name = "a"\nnode = 1'])
def test_a_cluster_without_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x: node .*at least one \[\[node\]\] table"):
        parse_cluster(text, "x")


def test_devices_have_to_be_tables() -> None:
    with pytest.raises(ValueError, match="x: device has to be a table of named tables, not 3"):
        parse_cluster('name = "a"\ndevice = 3', "x")


def test_a_node_without_a_link_to_the_others_is_refused() -> None:
    head, tail = GOOD.split("[between]")
    text = head + tail[tail.index("[[node]]") :]
    with pytest.raises(ValueError, match=r"node\[0\]\.between is missing: write \[between\]"):
        parse_cluster(text, "x")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.toml: there is no such file"):
        load_cluster(tmp_path / "nowhere.toml")
    with pytest.raises(ValueError, match=r"nowhere\.toml: there is no such file"):
        load_cluster("nowhere.toml")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        load_cluster(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.toml: .*UTF-8"):
        load_cluster(binary)


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(ValueError, match="no cluster 'dgx-h20': did you mean 'dgx-h200'"):
        load_cluster("dgx-h20")
    with pytest.raises(ValueError, match="no cluster 'zzz': known are aws-g5, "):
        load_cluster("zzz")


def test_a_path_is_never_a_built_in_name() -> None:
    with pytest.raises(ValueError, match="dgx-h200: there is no such file"):
        load_cluster(Path("dgx-h200"))


def test_a_file_is_loaded_by_text_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "rooms.toml"
    path.write_text(GOOD, "utf-8")
    assert load_cluster(path) == load_cluster(str(path)) == parse_cluster(GOOD, "x")


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
names = st.text(min_size=1, max_size=8)
sources = st.text(max_size=12)
links = st.builds(
    lambda **values: Link(**values),
    latency_s=st.floats(min_value=0, allow_infinity=False),
    bandwidth_bytes_per_s=positive,
    shared=st.booleans(),
    half_bytes=st.integers(min_value=0, max_value=2**60),
    worker_share=st.floats(min_value=0, max_value=1, exclude_min=True),
    source=sources,
)
devices = st.builds(
    lambda **values: Device(**values),
    name=names,
    memory_bytes=st.integers(min_value=1),
    memory_bandwidth_bytes_per_s=positive,
    flops=st.dictionaries(st.sampled_from(PRECISIONS), positive, min_size=1),
    source=sources,
) | st.sampled_from([load_device("v100"), load_device("cpu-core")])
nodes = st.builds(
    lambda **values: Node(**values),
    name=names,
    count=st.integers(min_value=1, max_value=10**4),
    workers=st.integers(min_value=1, max_value=300),  # of three kinds: below the most that can be
    device=devices,
    inside=links,
    between=links,
    price_per_hour=st.none() | st.floats(min_value=0, allow_infinity=False),
    source=sources,
)
clusters = st.builds(
    lambda **values: Cluster(**values),
    name=names,
    description=sources,
    node_kinds=st.lists(nodes, min_size=1, max_size=3, unique_by=lambda kind: kind.device.name).map(
        tuple
    ),
)


@given(clusters)
def test_a_written_cluster_is_read_back_equal(cluster: Cluster) -> None:
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def test_what_nccl_reaches_is_read_and_written() -> None:
    text = (
        'name = "x"\n[[node]]\nworkers = 4\ndevice = "v100"\n[node.inside]\nlatency = "1 us"\n'
        'bandwidth = "32 GB/s"\nstart = "5 us"\nswitch_bandwidth = "300 GB/s"\n'
        'reached = { 2 = "20 GB/s", 8 = "5 GB/s" }\n'
        '[node.between]\nlatency = "7 us"\nbandwidth = "10 Gbit/s"\nefficiency = 0.9\n'
        "shared = true\nworker_share = 0.25\n"
    )
    cluster = parse_cluster(text, "x.toml")
    assert cluster.node_kinds[0].between.worker_share == 0.25
    assert cluster.node_kinds[0].inside.reached_bytes_per_s == {2: 20e9, 8: 5e9}
    assert parse_cluster(dump_cluster(cluster), "again") == cluster
    for wrong, sentence in (
        ('{ two = "20 GB/s" }', "reached.two is not a number of workers: write 2 or more"),
        ('{ 2 = "20 GB" }', "'20 GB' is not a bandwidth"),
        ('"20 GB/s"', "node.0..inside.reached has to be a table such as"),
    ):
        bad = text.replace('{ 2 = "20 GB/s", 8 = "5 GB/s" }', wrong)
        with pytest.raises(ValueError, match=sentence):
            parse_cluster(bad, "x.toml")
    with pytest.raises(ValueError, match="efficiency has to be a number above 0 and at most 1"):
        parse_cluster(text.replace("0.9", "1.9"), "x.toml")
