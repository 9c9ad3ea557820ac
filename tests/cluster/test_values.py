from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from paceline.cluster import Cluster, Device, Link, Node, dump_cluster, load_cluster, parse_cluster


def device(**changes: Any) -> Device:
    values: dict[str, Any] = {
        "name": "toy",
        "memory_bytes": 10**9,
        "memory_bandwidth_bytes_per_s": 1e10,
        "flops": {"fp32": 1e12},
    }
    return Device(**values | changes)


def link(**changes: Any) -> Link:
    values: dict[str, Any] = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9}
    return Link(**values | changes)


def node(**changes: Any) -> Node:
    values: dict[str, Any] = {
        "name": "box",
        "count": 2,
        "workers": 4,
        "device": device(),
        "inside": link(),
        "between": link(shared=True),
    }
    return Node(**values | changes)


def unequal() -> Cluster:
    return Cluster(name="unequal", node_kinds=(node(), node(name="small", count=3, workers=1)))


def test_totals_of_unequal_nodes() -> None:
    cluster = unequal()
    assert cluster.num_nodes == 5
    assert cluster.num_workers == 11
    assert cluster.workers_per_node == (4, 4, 1, 1, 1)
    assert not cluster.is_uniform


def test_kinds_that_differ_only_in_name_and_count_are_uniform() -> None:
    cluster = Cluster(name="same", node_kinds=(node(), node(name="other", count=1)))
    assert cluster.is_uniform
    assert cluster.with_workers_per_node(2).workers_per_node == (2, 2, 2)


def test_price_needs_every_price() -> None:
    priced = node(price_per_hour=3.5)
    assert Cluster(name="a", node_kinds=(priced, node(price_per_hour=0.0))).price_per_hour == 7.0
    assert Cluster(name="b", node_kinds=(priced, node())).price_per_hour is None


def test_with_nodes_and_workers() -> None:
    cluster = load_cluster("dgx-h200").with_nodes(16).with_workers_per_node(4)
    assert cluster.workers_per_node == (4,) * 16
    assert cluster.node_kinds[0].device.name == "h200"


@pytest.mark.parametrize("num", [0, -1])
def test_with_nodes_and_workers_refuse_less_than_one(num: int) -> None:
    with pytest.raises(ValueError, match=r"Node\.count: .*greater than or equal to 1"):
        load_cluster("dgx-h200").with_nodes(num)
    with pytest.raises(ValueError, match=r"Node\.workers_per_node: .*greater than or equal to 1"):
        load_cluster("dgx-h200").with_workers_per_node(num)


def test_with_nodes_and_workers_refuse_unequal_nodes() -> None:
    for change in (unequal().with_nodes, unequal().with_workers_per_node):
        with pytest.raises(ValueError, match="'unequal' has 2 kinds of node"):
            change(2)


def test_with_link_changes_every_between_and_nothing_else() -> None:
    before = unequal()
    after = before.with_link(5e8)
    assert [kind.between.bandwidth_bytes_per_s for kind in after.node_kinds] == [5e8, 5e8]
    assert after.node_kinds[0].between.source == "bandwidth set to 4 Gbit/s"
    assert [kind.inside for kind in after.node_kinds] == [kind.inside for kind in before.node_kinds]
    assert before == unequal()


def test_with_link_takes_a_numpy_number() -> None:
    cluster = unequal().with_link(np.float64(3e8))
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


@pytest.mark.parametrize(
    ("make", "changes", "field"),
    [
        (link, {"latency_s": -1e-6}, "Link.latency_s"),
        (link, {"latency_s": float("nan")}, "Link.latency_s"),
        (link, {"bandwidth_bytes_per_s": 0}, "Link.bandwidth_bytes_per_s"),
        (link, {"bandwidth_bytes_per_s": float("inf")}, "Link.bandwidth_bytes_per_s"),
        (link, {"bandwidth_bytes_per_s": "1 GB/s"}, "Link.bandwidth_bytes_per_s"),
        (link, {"bandwith": 3}, "Link.bandwith"),
        (link, {"half_bytes": -1}, "Link.half_bytes"),
        (link, {"half_bytes": 0.5}, "Link.half_bytes"),
        (device, {"memory_bytes": 0}, "Device.memory_bytes"),
        (device, {"flops": {}}, "Device.flops"),
        (device, {"flops": {"fp64": 1e12}}, "Device.flops.fp64"),
        (device, {"flops": {"fp32": -1.0}}, "Device.flops.fp32"),
        (device, {"name": ""}, "Device.name"),
        (node, {"workers": 0}, "Node.workers"),
        (node, {"workers": True}, "Node.workers"),
        (node, {"count": 1.5}, "Node.count"),
        (node, {"price_per_hour": -1.0}, "Node.price_per_hour"),
        (node, {"device": "v100"}, "Node.device"),
    ],
)
def test_values_made_in_python_are_checked(make: Any, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(**changes)
    sentence = str(caught.value)
    assert sentence.startswith((f"{field}:", f"{field}.", f"{field} "))
    assert "\n" not in sentence


def test_a_misspelt_field_is_reported_as_unknown_and_not_as_missing() -> None:
    with pytest.raises(ValueError, match=r"^Link\.bandwith is .*'bandwidth_bytes_per_s'"):
        Link(latency_s=0, bandwith=3)  # type: ignore[call-arg]


def test_a_cluster_needs_a_node() -> None:
    with pytest.raises(ValueError, match=r"Cluster\.node_kinds: .*at least 1"):
        Cluster(name="empty", node_kinds=())


def test_two_devices_of_one_name_are_refused() -> None:
    other = node(device=device(memory_bytes=2))
    with pytest.raises(ValueError, match="two different devices are named 'toy'"):
        Cluster(name="clash", node_kinds=(node(), other))


def test_values_are_frozen_hashable_and_picklable() -> None:
    cluster = unequal()
    with pytest.raises(ValueError, match="frozen"):
        cluster.name = "other"
    assert {cluster: 1}[unequal()] == 1
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_to_dict_is_plain_json_in_base_units() -> None:
    data = unequal().to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["num_workers"] == 11
    assert data["workers_per_node"] == [4, 4, 1, 1, 1]
    assert data["nodes"][0]["device"]["memory_bytes"] == 10**9
    assert data["nodes"][0]["device"]["flops"] == {"fp32": 1e12}
    assert data["nodes"][1]["between"] == {
        "latency_s": 1e-6,
        "bandwidth_bytes_per_s": 1e9,
        "shared": True,
        "worker_share": 1.0,
        "half_bytes": 0,
        "efficiency": None,
        "reached_bytes_per_s": None,
        "switch_bandwidth_bytes_per_s": None,
        "start_s": None,
        "interference": 0.0,
        "lone_interference": None,
        "busy_factor": 1.0,
        "lone_busy_factor": None,
        "source": "",
    }


def test_jitter_is_typical_unless_it_is_given() -> None:
    node = load_cluster("dgx-a100").node_kinds[0]
    assert node.jitter_of(on_cpu=False) == (0.02, 0.035)
    assert node.jitter_of(on_cpu=True) == (0.05, 0.0)
    # Who says how much workers vary has said all of it, unless nodes are named too.
    assert node.replace(jitter=0.1).jitter_of(on_cpu=False) == (0.1, 0.0)
    assert node.replace(jitter=0.1, node_jitter=0.2).jitter_of(on_cpu=True) == (0.1, 0.2)
