"""How a batch is shared among workers of different speeds: whole samples, none lost, none twice."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


def share_batch(
    batch_size: int,
    speeds: Sequence[float],
    *,
    limits: Sequence[int | None] | None = None,
    least: int = 1,
) -> tuple[int, ...]:
    """How many samples of a batch each worker takes, so that all are done at about the same time.

    Shares are in proportion to the speeds, within the limits, and rounded such that the largest
    share over its speed is as small as possible. They add up to the batch.

    Args:
        batch_size: Samples of the whole batch.
        speeds: Samples per second of each worker, or anything in proportion to it.
        limits: The most that each worker's memory holds; None for no limit.
        least: A share is at least this, or 0: the slowest workers that would get less go without.

    """
    if batch_size < 0 or not speeds or any(not 0 <= speed < math.inf for speed in speeds):
        raise ValueError("A batch is shared by workers whose speeds are finite and not negative.")
    caps = [math.inf if cap is None else max(0, cap) for cap in limits or [None] * len(speeds)]
    if sum(caps) < batch_size:
        raise ValueError(
            f"the workers' limits add up to {sum(caps):.0f} samples, and the batch has "
            f"{batch_size}: make the batch smaller or the limits larger"
        )
    usable = [place for place, cap in enumerate(caps) if cap > 0]
    active = [place for place in usable if speeds[place] > 0]
    if sum(caps[place] for place in active) < batch_size:
        # Somebody has to take the rest, however slow.
        slowest = min((speeds[place] for place in active), default=1.0)
        speeds = [speed or slowest for speed in speeds]
        active = usable
    while True:
        shares = _divide(batch_size, speeds, caps, active)
        small = [place for place in active if 0 < shares[place] < min(least, caps[place])]
        if not small or len(active) == 1:
            return tuple(shares)
        out = min(small, key=lambda place: (speeds[place], -place))
        rest = [place for place in active if place != out]
        if sum(caps[place] for place in rest) < batch_size:
            return tuple(shares)
        active = rest


def _divide(
    batch_size: int, speeds: Sequence[float], caps: Sequence[float], active: Sequence[int]
) -> list[int]:
    shares = [0] * len(speeds)
    rest, waiting = batch_size, list(active)
    while waiting:
        total = sum(speeds[place] for place in waiting)
        full = [place for place in waiting if rest * (speeds[place] / total) >= caps[place]]
        if not full:
            break
        for place in full:
            shares[place] = int(caps[place])
            rest -= shares[place]
        waiting = [place for place in waiting if place not in set(full)]
    for place in waiting:
        shares[place] = int(rest * (speeds[place] / total))
    rest = batch_size - sum(shares)
    # What rounding down has left goes, one by one, to whoever is done first with one more.
    queue = [((shares[place] + 1) / speeds[place], place) for place in waiting]
    heapq.heapify(queue)
    while rest:
        _, place = heapq.heappop(queue)
        shares[place] += 1
        rest -= 1
        if shares[place] < caps[place]:
            heapq.heappush(queue, ((shares[place] + 1) / speeds[place], place))
    return shares


def share_samples(
    sizes: Sequence[int], speeds: Sequence[float], *, limits: Sequence[int | None] | None = None
) -> list[list[int]]:
    """Which samples of a batch each worker takes, where samples have sizes, such as tokens.

    The longest first, each to the worker that would be done with it first.

    Args:
        sizes: Of each sample of the batch.
        speeds: Of each worker, in sizes per second or in proportion to it.
        limits: The most that each worker's memory holds, in sizes; None for no limit.

    """
    caps = [math.inf if cap is None else cap for cap in limits or [None] * len(speeds)]
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0] * len(speeds)
    workers = range(len(speeds))
    if not any(speed > 0 for speed in speeds):
        speeds = [1.0] * len(speeds)
    for place in sorted(range(len(sizes)), key=lambda place: (-sizes[place], place)):
        size = sizes[place]
        able = [i for i in workers if speeds[i] > 0 and loads[i] + size <= caps[i]]
        if not able:
            able = [i for i in workers if loads[i] + size <= caps[i]]
        if not able:
            raise ValueError(
                f"the workers' limits have no room for a sample of {size} in a batch of "
                f"{sum(sizes)}: make the batch smaller or the limits larger"
            )
        chosen = min(able, key=lambda i: ((loads[i] + size) / (speeds[i] or 1e-12), i))
        shares[chosen].append(place)
        loads[chosen] += size
    return [sorted(own) for own in shares]
