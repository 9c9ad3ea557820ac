"""The five axes of a study: batch size, arithmetic, memory bandwidth, link bandwidth, workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar, get_args

import numpy as np

from paceline.cluster import Cluster
from paceline.cluster.units import parse_bandwidth

AxisName = Literal["batch", "arithmetic", "memory_bandwidth", "link", "workers"]
AXES: tuple[AxisName, ...] = get_args(AxisName)
TITLES: dict[AxisName, str] = {
    "batch": "batch per worker",
    "arithmetic": "arithmetic speed of the device, relative",
    "memory_bandwidth": "memory bandwidth of the device, relative",
    "link": "bandwidth between nodes",
    "workers": "workers",
}

DEFAULT_MOST_WORKERS = 1024
_PER_OCTAVE = 4  # values between two powers of two, so that crossing points are found finely
_FACTORS = tuple(float(factor) for factor in np.geomspace(0.25, 4.0, 17))
_LINK_FACTORS = tuple(float(factor) for factor in np.geomspace(1 / 16, 16.0, 33))

_MOST_DIGITS = 12
_MOST_VALUES = 1000
_MOST_RATIO = 1e12

Value = TypeVar("Value", int, float)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of each axis. ``arithmetic`` and ``memory_bandwidth`` are factors."""

    batch: tuple[int, ...]
    arithmetic: tuple[float, ...]
    memory_bandwidth: tuple[float, ...]
    link: tuple[float, ...]
    """Bytes per second that a node gets out of its link to the others."""
    workers: tuple[int, ...]

    def values(self, name: AxisName) -> tuple[float, ...]:
        """The values of one axis."""
        return getattr(self, name)  # type: ignore[no-any-return]


def make_axes(
    cluster: Cluster,
    batch: int,
    *,
    batches: str | Sequence[int] | None = None,
    arithmetic: str | Sequence[float] | None = None,
    memory_bandwidth: str | Sequence[float] | None = None,
    link: str | Sequence[float] | None = None,
    workers: str | Sequence[int] | None = None,
) -> Axes:
    """Axes around a cluster and a batch size; what is not given has a sensible range.

    Args:
        cluster: The cluster that is studied.
        batch: The step's own batch size per worker.
        batches: Batch sizes per worker, or a range such as ``8:512``.
        arithmetic: Factors on the device's arithmetic speed, or a range such as ``0.5:4``.
        memory_bandwidth: Factors on its memory bandwidth, likewise.
        link: Bandwidths between nodes in bytes per second, or a range such as ``1gbit:800gbit``.
        workers: Numbers of workers, or a range such as ``1:4096``.
    """
    (kind, *others) = cluster.node_kinds
    if others:
        raise ValueError(
            f"A study needs a cluster of equal nodes; {cluster.name} has "
            f"{len(cluster.node_kinds)} kinds of nodes."
        )
    own_link = kind.between.bandwidth_bytes_per_s
    per_node = kind.workers_per_node
    doubled = tuple(sorted({batch, *(batch * 2**power // 8 for power in range(7))} - {0}))
    return Axes(
        batch=_values(batches, "batch", _whole, _powers_of_two, doubled),
        arithmetic=_values(arithmetic, "arithmetic", float, _geometric, _FACTORS),
        memory_bandwidth=_values(memory_bandwidth, "memory bandwidth", float, _geometric, _FACTORS),
        link=_values(
            link,
            "link",
            parse_bandwidth,
            _geometric,
            tuple(own_link * factor for factor in _LINK_FACTORS),
        ),
        workers=_placed(
            _values(
                workers,
                "workers",
                _whole,
                _octaves,
                _octaves(1, max(DEFAULT_MOST_WORKERS, cluster.num_workers)),
            ),
            per_node,
        ),
    )


def _values(
    given: str | Sequence[Value] | None,
    name: str,
    parse: Callable[[str], Value],
    between: Callable[[Value, Value], tuple[Value, ...]],
    default: tuple[Value, ...],
) -> tuple[Value, ...]:
    if given is None:
        return default
    if not isinstance(given, str):
        values = tuple(islice(given, _MOST_VALUES + 1))
        if len(values) > _MOST_VALUES:
            raise ValueError(f"--{name}: give at most {_MOST_VALUES} values.")
    else:
        first, colon, last = given.partition(":")
        try:
            low, high = parse(first), parse(last if colon else first)
        except ValueError as problem:
            raise ValueError(f"--{name} {given[:80]} is not a range: {problem}") from None
        if not 0 < low < np.inf or not 0 < high < np.inf:
            raise ValueError(f"--{name} {given[:80]}: give numbers above 0.")
        if high / low > _MOST_RATIO:
            raise ValueError(f"--{name} {given[:80]}: its end is too far from its beginning.")
        if low > high:
            raise ValueError(f"--{name} {given}: the range begins above its end.")
        values = between(low, high) if low < high else (low,)
    if not values or not all(0 < value < np.inf for value in values):
        raise ValueError(f"--{name} {given}: give numbers above 0.")
    return tuple(sorted(set(values)))


def _whole(text: str) -> int:
    plain = text.strip()
    if not (plain.isascii() and plain.isdecimal() and len(plain) <= _MOST_DIGITS):
        raise ValueError(
            f"{text[:40]!r} is not a whole number of at most {_MOST_DIGITS} digits, write it as "
            "8:512"
        )
    return int(plain)


def _powers_of_two(low: int, high: int) -> tuple[int, ...]:
    inside = (2**power for power in range(high.bit_length()))
    return tuple(sorted({low, high, *(value for value in inside if low < value < high)}))


def _geometric(low: float, high: float) -> tuple[float, ...]:
    count = max(2, 1 + round(_PER_OCTAVE * float(np.log2(high / low))))
    return tuple(float(value) for value in np.geomspace(low, high, count))


def _octaves(low: int, high: int) -> tuple[int, ...]:
    return tuple(sorted({round(value) for value in _geometric(low, max(high, low + 1))} | {high}))


def _placed(workers: tuple[int, ...], per_node: int) -> tuple[int, ...]:
    """Numbers of workers that whole nodes have; fewer than one node's share one node."""
    return tuple(
        sorted({w if w <= per_node else max(1, round(w / per_node)) * per_node for w in workers})
    )
