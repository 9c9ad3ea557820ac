"""The closed formulas against simulations that pass every message on, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.collectives import formulas
from paceline.collectives.topology import Numbers, Route

ROUTE = Route(latency_s=2e-5, bandwidth_bytes_per_s=1.25e8)
UNEVEN = Route(latency_s=2e-5, bandwidth_bytes_per_s=1.25e8, half_bytes=65536)
SIZES = [1.0, 4096.0, 1e6, 3e8]


def one_message_s(num_bytes: float, route: Route) -> float:
    """By the definition of efficiency: n bytes at B / (1 + sqrt(h / n))."""
    efficiency = 1 / (1 + math.sqrt(float(route.half_bytes) / num_bytes))
    return float(route.latency_s + num_bytes / (route.bandwidth_bytes_per_s * efficiency))


def simulate_ring(num_bytes: float, num_workers: int, route: Route, *, rounds: int) -> float:
    """Workers hand their parts to the next one; a part may go on when it has arrived.

    ``rounds`` is 1 for a reduce-scatter and 2 for an all-reduce. Also follows what the parts hold:
    whose contributions, and where the complete ones are.
    """
    part_s = one_message_s(num_bytes / num_workers, route)
    now = [0.0] * num_workers
    holds = [[{worker} for _ in range(num_workers)] for worker in range(num_workers)]
    for step in range(rounds * (num_workers - 1)):
        sent = [
            ((worker - step) % num_workers, now[worker] + part_s) for worker in range(num_workers)
        ]
        before = [[set(part) for part in parts] for parts in holds]
        for worker in range(num_workers):
            source = (worker - 1) % num_workers
            part, arrival = sent[source]
            holds[worker][part] |= before[source][part]
            now[worker] = max(now[worker], arrival)
    everybody = set(range(num_workers))
    complete = [sum(part == everybody for part in parts) for parts in holds]
    assert complete == [num_workers if rounds == 2 else 1] * num_workers
    return max(now)


def simulate_chain(num_bytes: float, num_workers: int, route: Route, pieces: int) -> float:
    """Pieces go from worker to worker; each link carries one at a time."""
    piece_s = num_bytes / pieces / float(route.bandwidth_bytes_per_s)
    free = [0.0] * num_workers
    last = 0.0
    for _ in range(pieces):
        arrival = 0.0
        for worker in range(num_workers - 1):
            free[worker] = max(free[worker], arrival) + piece_s
            arrival = free[worker] + float(route.latency_s)
        last = arrival
    return last


def simulate_binomial(num_bytes: float, num_workers: int, route: Route) -> float:
    """Worker r has the children r + 2^i with 2^i > r; they share its link until all are served."""
    has = {0: 0.0}
    for worker in range(num_workers):
        children = [
            worker + 2**i
            for i in range(worker.bit_length(), num_workers.bit_length())
            if worker + 2**i < num_workers
        ]
        for child in children:
            busy_s = len(children) * (one_message_s(num_bytes, route) - float(route.latency_s))
            has[child] = has[worker] + float(route.latency_s) + busy_s
    assert len(has) == num_workers
    return max(has.values())


def simulate_message_tree(num_bytes: float, num_workers: int, route: Route) -> float:
    """Up a binomial tree and down again; a message begins when both of its workers are there."""
    message_s = one_message_s(num_bytes, route)
    now = [0.0] * num_workers
    sums = [{worker} for worker in range(num_workers)]
    distances = [2**i for i in range(num_workers.bit_length()) if 2**i < num_workers]
    for distance in distances:
        for low in range(0, num_workers - distance, 2 * distance):
            high = low + distance
            now[low] = now[high] = max(now[low], now[high]) + message_s
            sums[low] |= sums[high]
    assert sums[0] == set(range(num_workers))
    for distance in reversed(distances):
        for low in range(0, num_workers - distance, 2 * distance):
            high = low + distance
            # The one below waits since it has sent its sum.
            now[low] = now[high] = now[low] + message_s
    return max(now)


def parent_in_tree(worker: int, num_workers: int) -> int | None:
    """The binary tree whose inner workers have odd numbers, for a power of two of workers."""
    if worker == 0:
        return None
    lowest = worker & -worker
    parent = (worker ^ lowest) | (lowest << 1)
    return parent if parent < num_workers else worker ^ lowest


def simulate_two_trees(num_bytes: float, num_workers: int, route: Route) -> float:
    """Follows half of the bytes through a tree and half through the same tree, shifted by one.

    A pipeline takes as long as its busiest port, and its longest way for the first piece.
    """
    received = [0.0] * num_workers
    sent = [0.0] * num_workers
    depth = [0] * num_workers
    for shift in (0, 1):
        for place in range(num_workers):
            parent = parent_in_tree(place, num_workers)
            if parent is not None:
                low, high = (place + shift) % num_workers, (parent + shift) % num_workers
                for source, target in ((low, high), (high, low)):  # up, and down again
                    sent[source] += num_bytes / 2
                    received[target] += num_bytes / 2
            hops = 0
            while parent is not None:
                parent, hops = parent_in_tree(parent, num_workers), hops + 1
            depth[place] = hops
    busiest_s = max(*sent, *received) / float(route.bandwidth_bytes_per_s)
    return 2 * max(depth) * float(route.latency_s) + busiest_s


@pytest.mark.parametrize("route", [ROUTE, UNEVEN])
@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 7, 16])
def test_rings(num_bytes: float, num_workers: int, route: Route) -> None:
    once = simulate_ring(num_bytes, num_workers, route, rounds=1)
    twice = simulate_ring(num_bytes, num_workers, route, rounds=2)
    assert formulas.reduce_scatter_s(num_bytes, num_workers, route) == pytest.approx(once)
    assert formulas.all_gather_s(num_bytes, num_workers, route) == pytest.approx(once)
    assert formulas.ring_all_reduce_s(num_bytes, num_workers, route) == pytest.approx(twice)


@pytest.mark.parametrize("route", [ROUTE, UNEVEN])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33])
def test_broadcasts(num_workers: int, route: Route) -> None:
    for num_bytes in SIZES:
        tree = simulate_binomial(num_bytes, num_workers, route)
        found = formulas.binomial_broadcast_s(num_bytes, num_workers, route)
        assert found == pytest.approx(tree)
    pipelined = simulate_chain(3e8, num_workers, ROUTE, pieces=10000)
    assert formulas.chain_broadcast_s(3e8, num_workers, ROUTE) == pytest.approx(pipelined, rel=0.01)


@pytest.mark.parametrize("route", [ROUTE, UNEVEN])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 5, 7, 8, 9, 33])
def test_tree_of_messages(num_workers: int, route: Route) -> None:
    for num_bytes in SIZES:
        found = formulas.message_tree_all_reduce_s(num_bytes, num_workers, route)
        assert found == pytest.approx(simulate_message_tree(num_bytes, num_workers, route))


def simulate_rested_links(
    num_bytes: float, num_workers: int, *, host_s: float, num_cores: int, burst: float, add: float
) -> float:
    """The first worker's messages; in no window passes more than burst + rate * time."""
    rate, total, distances = 1.25e8, 0.0, [2**i for i in range(9) if 2**i < num_workers]
    for way in ("up", "down"):
        begun: list[float] = []
        now = 0.0
        for distance in distances:
            busy = 2 * len(range(0, num_workers - distance, 2 * distance))
            now += 2e-5 + host_s * max(1.0, busy / num_cores)
            now += num_bytes / add if way == "up" else 0.0
            begun.append(now)
            windows = [
                start + ((len(begun) - i) * num_bytes - burst) / rate
                for i, start in enumerate(begun)
            ]
            now = max(now, *windows)
        total += now
    return total


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 6, 7, 8, 33])
def test_tree_of_messages_of_a_crowd_over_links_that_have_rested(num_workers: int) -> None:
    host_s, cores = 3e-4, 2
    for num_bytes in (*SIZES, 17e3, 20e3, 1e5):
        found = formulas.message_tree_all_reduce_s(
            num_bytes,
            np.array([num_workers, 2]),  # as a study asks
            ROUTE,
            combine_bytes_per_s=4e9,
            burst_bytes=18e3,
            host_s=host_s,
            num_cores=cores,
        )
        for place, count in enumerate((num_workers, 2)):
            expected = simulate_rested_links(
                num_bytes, count, host_s=host_s, num_cores=cores, burst=18e3, add=4e9
            )
            assert np.asarray(found)[place] == pytest.approx(expected)


@pytest.mark.parametrize("num_workers", [2, 4, 8, 64])
def test_double_binary_tree(num_workers: int) -> None:
    for num_bytes in SIZES:
        simulated = simulate_two_trees(num_bytes, num_workers, ROUTE)
        assert formulas.tree_all_reduce_s(num_bytes, num_workers, ROUTE) == pytest.approx(simulated)


def test_one_worker_has_nobody_to_wait_for() -> None:
    assert formulas.tree_all_reduce_s(1e6, 1, ROUTE) == 0
    assert formulas.copied_ring_all_reduce_s(1e6, 1, 1e9) == 0


@pytest.mark.parametrize(("num_nodes", "workers_per_node"), [(1, 4), (3, 1), (4, 2), (2, 8)])
def test_hierarchical(num_nodes: int, workers_per_node: int) -> None:
    inside = Route(latency_s=3e-6, bandwidth_bytes_per_s=2e10)
    # Each of the node's concurrent all-reduces has its share of the card.
    across = ROUTE.times(1 / workers_per_node)
    in_node = simulate_ring(1e8, workers_per_node, inside, rounds=1)
    between = simulate_ring(1e8 / workers_per_node, num_nodes, across, rounds=2)
    found = formulas.hierarchical_all_reduce_s(
        1e8,
        workers_per_node,
        reduce_scatter_s=lambda size: formulas.reduce_scatter_s(size, workers_per_node, inside),
        across_s=lambda size: formulas.ring_all_reduce_s(size, num_nodes, across),
        all_gather_s=lambda size: formulas.all_gather_s(size, workers_per_node, inside),
    )
    assert found == pytest.approx(2 * in_node + between)


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_a_ring_that_devices_hold_up_counts_memory_accesses(num_workers: int) -> None:
    # The passes of a worker, in order: send; receive, add and send; the same, and keep the result;
    # receive, keep and send; receive and keep. Reads and writes of each, where the write that
    # keeps the sum overlaps the next pass:
    send, add, keep_sum, pass_on, receive = 2, 3, 3, 3, 2
    steps = num_workers - 2
    accesses = send + steps * add + keep_sum + steps * pass_on + receive
    found = formulas.copied_ring_all_reduce_s(9e6, num_workers, 3e9)
    assert found == pytest.approx(accesses / 3 * 9e6 / num_workers / 3e9)


def test_half_of_the_bandwidth_at_half_bytes() -> None:
    whole = Route(latency_s=0.0, bandwidth_bytes_per_s=1e9)
    half = Route(latency_s=0.0, bandwidth_bytes_per_s=1e9, half_bytes=65536)
    ratio = formulas.message_s(65536, half) / formulas.message_s(65536, whole)
    assert ratio == pytest.approx(2)
    assert formulas.message_s(1e12, half) == pytest.approx(formulas.message_s(1e12, whole), 1e-3)


def test_arrays_give_what_their_elements_give() -> None:
    num_bytes: Numbers = np.array([1e3, 1e6, 1e9])
    num_workers: Numbers = np.array([1, 2, 13])
    route = Route(
        latency_s=np.array([1e-6, 1e-5, 1e-4]),
        bandwidth_bytes_per_s=np.array([1e8, 1e9, 1e10]),
        half_bytes=np.array([0.0, 1e4, 1e6]),
    )
    for formula in (
        formulas.reduce_scatter_s,
        formulas.all_gather_s,
        formulas.ring_all_reduce_s,
        formulas.tree_all_reduce_s,
        formulas.chain_broadcast_s,
        formulas.binomial_broadcast_s,
    ):
        together = np.asarray(formula(num_bytes, num_workers, route))
        for i in range(3):
            alone = Route(
                latency_s=np.asarray(route.latency_s)[i],
                bandwidth_bytes_per_s=np.asarray(route.bandwidth_bytes_per_s)[i],
                half_bytes=np.asarray(route.half_bytes)[i],
            )
            one = formula(np.asarray(num_bytes)[i], np.asarray(num_workers)[i], alone)
            assert together[i] == pytest.approx(float(one))
