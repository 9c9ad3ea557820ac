"""The cost of one collective, in closed form.

P workers, n bytes, α seconds of latency, B bytes per second, h bytes at which half of B is
reached. Every number may be a NumPy array. ``num_bytes`` is the whole tensor: what goes into an
all-reduce or a reduce-scatter, what comes out of an all-gather or a broadcast.

Sources:

- [Hockney] R. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994: α + n/B.
- [Thakur] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
  operations in MPICH", IJHPCA 19, 2005: rings and binomial trees.
- [Patarasuk] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
  workstations", JPDC 69, 2009: the ring all-reduce.
- [Sanders] P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
  reduction and scan", Parallel Computing 35, 2009: the double binary tree.
- [Jeaugey] S. Jeaugey, "Massively scale your deep learning training with NCCL 2.4", NVIDIA
  developer blog, 2019: the double binary tree in NCCL.
- [Jia] X. Jia et al., "Highly scalable deep learning training system with mixed-precision",
  arXiv:1807.11205, 2018: the hierarchical all-reduce.
- [NCCL] NVIDIA/nccl, src/device/all_reduce.h: the passes of a ring all-reduce on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.collectives.topology import Numbers, Route


def transfer_s(num_bytes: Numbers, route: Route) -> Numbers:
    """(n + √(n·h)) / B: bandwidth alone, n/B at the efficiency 1 / (1 + √(h/n)).

    Half of the bandwidth at n = h. The root is what a pipeline leaves over that cuts a message
    into the best number of pieces: (√(n/B) + √α)² = n/B + 2√(α·n/B) + α. An efficiency of
    n / (n + h) would be another latency, h/B, and could not be told from α.
    """
    moved = num_bytes + np.sqrt(num_bytes * route.half_bytes)
    return moved / route.bandwidth_bytes_per_s


def message_s(num_bytes: Numbers, route: Route) -> Numbers:
    """α + n/B, with the efficiency of :func:`transfer_s`: point-to-point. [Hockney]."""
    return route.latency_s + transfer_s(num_bytes, route)


def reduce_scatter_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """(P−1) messages of n/P, round a ring. [Thakur]."""
    return (num_workers - 1) * message_s(num_bytes / num_workers, route)


def all_gather_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """(P−1) messages of n/P, round a ring. [Thakur]."""
    return (num_workers - 1) * message_s(num_bytes / num_workers, route)


def ring_all_reduce_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """2(P−1) messages of n/P: a reduce-scatter and an all-gather. [Patarasuk]."""
    return 2 * (num_workers - 1) * message_s(num_bytes / num_workers, route)


def tree_all_reduce_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """2⌈log₂P⌉·α + 2n/B: up and down a double binary tree, pipelined. [Sanders], [Jeaugey].

    In each of the two trees, with half of the bytes each, a worker that is no leaf has two
    children to hear from and to tell, so n bytes pass it on the way up and n on the way down. Two
    workers have one child at most: n/2 pass them in each tree and each direction, n/B in all.
    """
    latency_s = 2 * np.ceil(np.log2(num_workers)) * route.latency_s
    times = np.minimum(num_workers - 1, 2)
    return latency_s + times * transfer_s(num_bytes, route)


def message_tree_all_reduce_s(
    num_bytes: Numbers,
    num_workers: Numbers,
    route: Route,
    *,
    combine_bytes_per_s: Numbers = np.inf,
    host_s: Numbers = 0.0,
    num_cores: Numbers = np.inf,
    burst_bytes: Numbers = 0.0,
) -> Numbers:
    """2⌈log₂P⌉ messages of n, up and down a binomial tree, one behind the other. [Thakur].

    What teams do with ``collective="tree"``: the first worker hears from ⌈log₂P⌉ others in turn,
    each of which has heard from its own by then, and tells them in turn.

    Args:
        num_bytes: n.
        num_workers: P.
        route: α and B.
        combine_bytes_per_s: How fast a worker adds what it has heard to its own, on the way up.
        host_s: What of a message's latency its two workers compute. On a machine that all workers
            share they wait for a core, where a round's workers are more than the cores.
        num_cores: Of that machine.
        burst_bytes: What a link that has rested lets pass at once, as a token bucket does. The
            links of the first worker decide: each carries ⌈log₂P⌉ messages in a row, and gathers
            B bytes per second while it waits for the next one.

    """
    bandwidth = route.bandwidth_bytes_per_s
    moved = transfer_s(num_bytes, route) * bandwidth
    total: Numbers = 0.0
    for combined_s in (num_bytes / combine_bytes_per_s, 0.0):  # up, then down
        saved = burst_bytes
        for level in range(int(np.ceil(np.log2(np.max(num_workers))))):
            num_pairs = np.floor((num_workers - 2.0**level - 1) / 2.0 ** (level + 1)) + 1
            crowd = np.maximum(2 * num_pairs / num_cores, 1.0)
            waited_s = route.latency_s + host_s * crowd + combined_s
            saved = np.minimum(burst_bytes, saved + bandwidth * waited_s)
            late_s = np.maximum(moved - saved, 0.0) / bandwidth
            saved = np.maximum(saved - moved, 0.0)
            total = total + np.where(num_pairs > 0, waited_s + late_s, 0.0)
    return total


def hierarchical_all_reduce_s(
    num_bytes: Numbers,
    workers_per_node: Numbers,
    *,
    reduce_scatter_s: Callable[[Numbers], Numbers],
    across_s: Callable[[Numbers], Numbers],
    all_gather_s: Callable[[Numbers], Numbers],
) -> Numbers:
    """Reduce-scatter in the node, all-reduce of n/g across, all-gather in the node. [Jia].

    The three say what so many bytes take. ``across_s`` is one of g all-reduces that go at the same
    time, with its share of the node's network card.
    """
    part_bytes = num_bytes / workers_per_node
    return reduce_scatter_s(num_bytes) + across_s(part_bytes) + all_gather_s(num_bytes)


def chain_broadcast_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """(P−1)·α + n/B: in small pieces from worker to worker, pipelined. [Thakur]."""
    transfer = np.where(np.greater(num_workers, 1), transfer_s(num_bytes, route), 0.0)
    return (num_workers - 1) * route.latency_s + transfer


def binomial_broadcast_s(num_bytes: Numbers, num_workers: Numbers, route: Route) -> Numbers:
    """⌊log₂P⌋·α + S·n/B: who has the tensor sends all of it to all its children at once. [Thakur].

    The children share their parent's link, so all of them have to wait for the last. The way with
    the most children before it leads over the workers 0, 1, 3, 7, …, which have
    ⌈log₂(P + 1 − 2ʲ)⌉ − j of them, or none: S is their sum, k(k+1)/2 for P = 2ᵏ.
    """
    levels = np.floor(np.log2(num_workers))
    sends: Numbers = 0.0
    for j in range(int(np.max(levels)) + 1):
        rest = np.maximum(num_workers + 1 - 2.0**j, 1)
        sends = sends + np.maximum(np.ceil(np.log2(rest)) - j, 0)
    return levels * route.latency_s + sends * transfer_s(num_bytes, route)


def copied_ring_all_reduce_s(
    num_bytes: Numbers, num_workers: Numbers, copy_bandwidth_bytes_per_s: Numbers
) -> Numbers:
    """(2P − 5/3)·n/P over the copy bandwidth: a ring that its devices hold up, not its links.

    A GPU makes 2P−1 passes over n/P bytes. All but two of them touch memory three times (two reads
    and a write, or a read and two writes); the first, which only sends, and the last, which only
    receives, touch it twice: 2P−3 passes and two of two thirds. [NCCL]. (One of the others writes
    a fourth time, to keep the sum; that write overlaps the next pass and is not counted.)
    """
    passes = np.where(np.greater(num_workers, 1), 2 * num_workers - 5 / 3, 0.0)
    return passes * num_bytes / num_workers / copy_bandwidth_bytes_per_s
