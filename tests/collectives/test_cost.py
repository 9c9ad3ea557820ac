from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from paceline.cluster import load_cluster
from paceline.cluster.collective import CollectiveKind, Library
from paceline.collectives import Route, Topology, collective_s, formulas
from paceline.collectives.topology import topology_of

INSIDE = Route(latency_s=3.4e-6, bandwidth_bytes_per_s=235e9)
BETWEEN = Route(latency_s=14e-6, bandwidth_bytes_per_s=25e9)
MIB = 2.0**20


def topology(num_nodes: int = 1, workers_per_node: int = 8, **changes: Any) -> Topology:
    values: dict[str, Any] = {"inside": INSIDE, "between": BETWEEN}
    return Topology(num_nodes=num_nodes, workers_per_node=workers_per_node, **values | changes)


@pytest.mark.parametrize("kind", get_args(CollectiveKind))
@pytest.mark.parametrize("library", get_args(Library))
def test_one_worker_costs_nothing(kind: CollectiveKind, library: Library) -> None:
    assert collective_s(kind, 1e9, topology(1, 1), library=library, call_s=1.0) == 0


def test_nccl_by_hand_inside_a_node() -> None:
    # 8 GPUs. A few bytes: a ring in LL, 7 us to start and 14 hops of 3.4 us.
    assert collective_s("all_reduce", 8, topology()) == pytest.approx(7e-6 + 14 * 3.4e-6, 1e-3)
    # 1 GiB: in Simple, which starts later, has longer hops and a pipeline to fill.
    large = 13.8e-6 + 14 * 5.3e-6 + 14 / 8 * 2.0**30 / 235e9 + (1.3e-6 * 0.56e-3) ** 0.5
    assert collective_s("all_reduce", 2.0**30, topology()) == pytest.approx(large)
    # 4 MiB: in LL128, with three quarters of the bandwidth.
    medium = 17.7e-6 + 14 * 3.4e-6 + 14 / 8 * 4 * MIB / (0.75 * 235e9)
    assert collective_s("all_reduce", 4 * MIB, topology()) == pytest.approx(medium)


def test_nccl_by_hand_across_nodes() -> None:
    many = topology(64, 8)
    # 4 KiB over 64 nodes: a tree in LL, 7 hops in the node and 6 over the network, there and back.
    small = 7e-6 + 2 * (7 * 3.4e-6 + 6 * 14e-6) + 2 * 4096 / 1.85e9
    assert collective_s("all_reduce", 4096, many) == pytest.approx(small)
    ring = collective_s("all_reduce", 4096, many, algorithm="ring")
    assert ring > 5 * small
    # 10 GB over two nodes: a tree in Simple; a level of two hops in a pipeline, and four us a hop.
    transfer_s = 1e10 / 25e9
    filled_s = transfer_s + (1.3e-6 * 0.56e-3 + (7.3e-6 + 8 * 14e-6) * transfer_s) ** 0.5
    large = 7e-6 + 6.8e-6 + 2 * (7 * 5.3e-6 + 18e-6) + filled_s
    found = collective_s("all_reduce", 1e10, topology(2, 8), algorithm="tree")
    assert found == pytest.approx(large)


def test_two_nodes_send_half_of_what_a_tree_over_many_sends() -> None:
    # Published for p4d: 1 GiB over 2, 3 and 4 nodes takes 1, 1.84 and 2.0 times as long.
    times = [float(collective_s("all_reduce", 2.0**30, topology(nodes, 8))) for nodes in (2, 3, 4)]
    assert np.array(times) / times[0] == pytest.approx([1, 1.9, 1.95], rel=0.03)


def test_latency_limits_how_much_small_protocols_carry() -> None:
    near, far = (
        topology(2, 8, between=Route(latency_s=latency_s, bandwidth_bytes_per_s=100e9))
        for latency_s in (1e-6, 70e-6)
    )
    size = np.array([64, 128]) * 1024
    rates = [
        65536 / np.ptp(np.asarray(collective_s("all_reduce", size, each))) for each in (near, far)
    ]
    assert rates[1] == pytest.approx(0.65e6 / 140e-6)
    assert rates[0] > 3 * rates[1]


def test_a_switch_that_adds_up() -> None:
    plain, adding = topology(), topology(switch_bandwidth_bytes_per_s=300e9)
    expected = 7e-6 + 79e-6 + 9 / 8 * 2.0**30 / 300e9
    assert collective_s("all_reduce", 2.0**30, adding) == pytest.approx(expected)
    for kind, size, where in (
        ("all_reduce", 65536.0, 8),  # too small to be worth it
        ("all_gather", 2.0**30, 8),
        ("all_reduce", 2.0**30, 2),  # NCCL leaves two GPUs to rings
    ):
        without, with_switch = (
            collective_s(kind, size, replace(each, workers_per_node=where))  # type: ignore[arg-type]
            for each in (plain, adding)
        )
        assert without == with_switch
    # Between two nodes the cards carry all bytes once.
    slow = collective_s("all_reduce", 2.0**36, replace(adding, num_nodes=2))
    assert slow == pytest.approx(2.0**36 / 25e9, rel=0.01)


def test_bandwidth_by_the_number_of_workers() -> None:
    where = topology(reached=((2, 20e9), (8, 5e9)))
    for count, rate in ((2, 20e9), (4, 10e9), (8, 5e9)):
        found = collective_s("all_gather", 2.0**30, replace(where, workers_per_node=count))
        assert found == pytest.approx((count - 1) / count * 2.0**30 / rate, rel=0.01)


def test_workers_that_share_a_bus_divide_it() -> None:
    cluster = load_cluster("workstation-4x4090")
    (node,) = cluster.node_kinds
    bus = node.replace(inside=node.inside.replace(reached_bytes_per_s=None, efficiency=0.8))
    for count in (2, 4, 8):
        where = topology_of(cluster.replace(node_kinds=(bus.replace(workers_per_node=count),)))
        seconds = collective_s("all_gather", 2.0**30, where)
        rate = 0.8 * 31.5e9 * 2 / count
        assert seconds == pytest.approx((count - 1) / count * 2.0**30 / rate, rel=0.01)


def test_clusters_reach_what_was_measured_on_their_kind() -> None:
    """Bus bandwidth of 512 MiB in GB/s, as published (nccl-tests, NCCL 2.27, see the evidence)."""
    for name, kind, count, published in (
        ("dgx-a100", "all_reduce", 2, 193),
        ("dgx-a100", "all_reduce", 8, 222),
        ("dgx-h100", "all_gather", 2, 258),
        ("dgx-h100", "reduce_scatter", 8, 335),
        ("dgx-h200", "all_reduce", 8, 445),
        ("dgx-b200", "all_reduce", 2, 534),
        ("dgx-b200", "all_reduce", 8, 701),
        ("aws-g6e", "all_reduce", 4, 5.3),
    ):
        where = topology_of(load_cluster(name).with_nodes(1).with_workers_per_node(count))
        rounds = 2 if kind == "all_reduce" else 1
        seconds = collective_s(kind, 2.0**29, where)  # type: ignore[arg-type]
        bus = rounds * (count - 1) / count * 2.0**29 / seconds / 1e9
        assert bus == pytest.approx(published, rel=0.1), (name, kind, count)


def test_auto_is_the_cheaper_of_ring_and_tree() -> None:
    sizes = 2.0 ** np.arange(3, 33)
    for num_nodes, workers in product([1, 2, 16, 512], [1, 4, 8]):
        where = topology(num_nodes, workers)
        ring, tree = (
            np.asarray(collective_s("all_reduce", sizes, where, algorithm=algorithm))
            for algorithm in ("ring", "tree")
        )
        auto = np.asarray(collective_s("all_reduce", sizes, where))
        assert auto == pytest.approx(np.minimum(ring, tree))


def test_devices_that_copy_slower_than_links_carry_hold_up_the_ring() -> None:
    free, held = topology(), topology(copy_bandwidth_bytes_per_s=100e9)
    assert collective_s("all_reduce", 1e9, held) == pytest.approx(
        13.8e-6 + 14 * 5.3e-6 + (16 - 5 / 3) / 8 * 1e9 / 100e9 + (1.3e-6 * 0.56e-3) ** 0.5
    )
    fast = topology(copy_bandwidth_bytes_per_s=1e13)
    assert collective_s("all_reduce", 1e9, fast) == collective_s("all_reduce", 1e9, free)


def test_gloo_is_a_ring_over_the_slowest_link() -> None:
    for num_bytes in (65536.0, 32 * MIB):
        alone = collective_s("all_reduce", num_bytes, topology(1, 4), library="gloo")
        assert alone == pytest.approx(formulas.ring_all_reduce_s(num_bytes, 4, INSIDE))
        across = collective_s("all_reduce", num_bytes, topology(3, 4), library="gloo")
        assert across == pytest.approx(formulas.ring_all_reduce_s(num_bytes, 12, BETWEEN))


@pytest.mark.parametrize(
    ("kind", "num_nodes", "workers_per_node", "measured"),
    [
        # In the lab, links of 100 Mbit/s, 2 MiB: seconds over n/B, on a machine with other work.
        ("all_reduce", 3, 1, 1.365),
        ("reduce_scatter", 3, 1, 1.359),
        ("all_gather", 3, 1, 0.705),
        ("broadcast", 3, 1, 2.004),
        ("all_reduce", 4, 1, 1.572),
        ("reduce_scatter", 4, 1, 1.565),
        ("all_gather", 4, 1, 0.778),
        ("broadcast", 4, 1, 2.924),
        ("broadcast", 2, 2, 2.009),
    ],
)
def test_gloo_as_measured(
    kind: CollectiveKind, num_nodes: int, workers_per_node: int, measured: float
) -> None:
    links = {
        "inside": Route(latency_s=3e-5, bandwidth_bytes_per_s=2e9),
        "between": Route(latency_s=5e-5, bandwidth_bytes_per_s=12.5e6),
    }
    where = topology(num_nodes, workers_per_node, **links)
    found = collective_s(kind, 2 * MIB, where, library="gloo") * 12.5e6 / (2 * MIB)
    assert found == pytest.approx(measured, rel=0.07)


def test_a_shared_card_is_shared_and_others_are_not() -> None:
    shared, own = topology(4, 8, shared=True), topology(4, 8, shared=False)
    flow = 2 * 3 / 4 * 1e9 / 25e9  # without latency: a ring of four nodes
    for where, factor in ((shared, 8), (own, 1)):
        concurrent = collective_s("all_reduce", 1e9, where.across, library="gloo")
        assert concurrent == pytest.approx(factor * flow, rel=1e-2)
    # One collective of all workers goes through the node's cards together.
    world = [float(collective_s("all_reduce", 1e12, where)) for where in (shared, own)]
    assert world[0] / world[1] == pytest.approx(8, rel=0.02)


def test_a_worker_uses_the_cards_beside_it() -> None:
    eighth = topology(4, 8, worker_share=1 / 8)
    assert collective_s("all_reduce", 1e9, eighth) == collective_s("all_reduce", 1e9, topology(4))
    for few in (1, 2, 4):
        # So many workers of each node, and as many cards.
        own = replace(eighth, workers_per_node=few)
        slow = topology(4, few, between=BETWEEN.times(few / 8))
        assert collective_s("all_reduce", 1e9, own) == collective_s("all_reduce", 1e9, slow)
    # One worker of each node, alone or beside the others: its card is its own.
    alone, beside = eighth.across_beside(1), eighth.across
    assert collective_s("all_reduce", 1e9, alone) == collective_s("all_reduce", 1e9, beside)
    # A message has one card too; Gloo's ring has the node's.
    message = collective_s("point_to_point", 1e9, eighth)
    assert message == pytest.approx(14e-6 + 1e9 / (25e9 / 8))
    shared = topology(4)
    for library in get_args(Library):
        assert collective_s("point_to_point", 1e9, shared, library=library) == pytest.approx(
            14e-6 + 1e9 / 25e9
        )


def test_few_workers_of_ten_nodes_reach_what_was_measured() -> None:
    """Bus bandwidth in GB/s of ten nodes of H100, from xxrjun/nccl-tests-cluster (2026-01-29)."""
    nodes = load_cluster("dgx-h100").with_nodes(10)
    for few, measured in ((1, 48.9), (2, 98.3), (4, 196.4), (8, 364.1)):
        where = topology_of(nodes.with_workers_per_node(few))
        seconds = collective_s("all_reduce", 2.0**33, where)
        workers = 10 * few
        bus = 2 * (workers - 1) / workers * 2.0**33 / seconds / 1e9
        assert bus == pytest.approx(measured, rel=0.11), few


@pytest.mark.parametrize("library", get_args(Library))
def test_hierarchical_is_three_collectives(library: Library) -> None:
    where = topology(4, 8)
    parts = (
        collective_s("reduce_scatter", 1e8, where.node, library=library)
        + collective_s("all_reduce", 1e8 / 8, where.across, library=library)
        + collective_s("all_gather", 1e8, where.node, library=library)
    )
    whole = collective_s("all_reduce", 1e8, where, algorithm="hierarchical", library=library)
    assert whole == pytest.approx(float(parts))
    one_node = collective_s(
        "all_reduce", 1e8, topology(), algorithm="hierarchical", library=library
    )
    inside = collective_s("reduce_scatter", 1e8, topology(), library=library) + collective_s(
        "all_gather", 1e8, topology(), library=library
    )
    assert one_node == pytest.approx(float(inside))


@pytest.mark.parametrize("kind", get_args(CollectiveKind))
@pytest.mark.parametrize("library", get_args(Library))
def test_many_configurations_at_once(kind: CollectiveKind, library: Library) -> None:
    random = np.random.default_rng(0)
    size = 200
    num_bytes = 2.0 ** random.uniform(3, 32, size)
    nodes, workers = random.integers(1, 40, size), random.integers(1, 9, size)
    rates = 10.0 ** random.uniform(7, 12, (2, size))
    latencies = 10.0 ** random.uniform(-7, -3, (2, size))
    halves = random.integers(0, 10**6, (2, size))

    def where(i: Any) -> Topology:
        return Topology(
            num_nodes=nodes[i],
            workers_per_node=workers[i],
            inside=Route(
                latency_s=latencies[0, i],
                bandwidth_bytes_per_s=rates[0, i],
                half_bytes=halves[0, i],
            ),
            between=Route(
                latency_s=latencies[1, i],
                bandwidth_bytes_per_s=rates[1, i],
                half_bytes=halves[1, i],
            ),
        )

    together = np.asarray(collective_s(kind, num_bytes, where(slice(None)), library=library))
    alone = [
        float(collective_s(kind, num_bytes[i], where(i), library=library)) for i in range(size)
    ]
    assert together == pytest.approx(np.array(alone))
    assert np.all(together >= 0)
    assert np.all(np.isfinite(together))


def test_a_cluster_is_as_slow_as_its_slowest_links() -> None:
    where = topology_of(load_cluster("mixed"))
    assert (where.num_nodes, where.workers_per_node) == (3, 4)
    # The workstations have one worker: their inside carries nothing.
    assert where.inside.bandwidth_bytes_per_s == 150e9
    assert where.between.bandwidth_bytes_per_s == 1.25e9
    uniform = topology_of(load_cluster("dgx-a100").with_nodes(16))
    assert uniform.num_workers == 128
    assert uniform.across.between.bandwidth_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "allreduce"}, "there is no kind 'allreduce': known are all_reduce, "),
        ({"algorithm": "star"}, "there is no algorithm 'star'"),
        ({"library": "mpi"}, "there is no library 'mpi': known are nccl, gloo"),
        ({"kind": "broadcast", "algorithm": "tree"}, "leave it 'auto' for 'broadcast'"),
        ({"library": "gloo", "algorithm": "tree"}, "Gloo has no tree"),
    ],
)
def test_mistakes_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    kind = arguments.pop("kind", "all_reduce")
    with pytest.raises(ValueError, match=sentence):
        collective_s(kind, 1e6, topology(), **arguments)
