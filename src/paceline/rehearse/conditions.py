"""What a recorded program is timed under: one cluster, or thousands at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.cluster.node import Node
from paceline.collectives import Numbers, Topology


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """A cluster of equal nodes in numbers, or many of them in arrays of one length.

    Args:
        topology: The nodes and the links between them.
        arithmetic: How many times as fast the device computes as the kernel model's.
        memory: How many times as fast its memory is.
        host: How many times as fast its host issues.
        jitter: How much a worker's time varies: its standard deviation over its mean. By default
            what ``node`` says, or what is typical.
        node_jitter: How much a node's time varies against the others, beside that; by default 0
            where ``jitter`` is given.
        node: What else is known of the nodes: their slowdown, and what communication and computing
            cost each other.

    """

    topology: Topology
    arithmetic: Numbers = 1.0
    memory: Numbers = 1.0
    host: float = 1.0
    jitter: float | None = None
    node_jitter: float | None = None
    node: Node | None = None

    def __len__(self) -> int:
        return max((len(array) for array in _arrays(self)), default=1)

    def parts(self, size: int) -> Iterator[Conditions]:
        """The same conditions, so many at a time."""
        for start in range(0, len(self), size):
            yield _cut(self, slice(start, start + size), len(self))

    def only(self, some: npt.NDArray[np.bool_]) -> Conditions:
        """Those that are true in an array."""
        own: Conditions = _cut(self, some, len(self))
        return own


def _arrays(value: Any) -> Iterator[Any]:
    if is_dataclass(value):
        for each in fields(value):
            yield from _arrays(getattr(value, each.name))
    elif np.ndim(value) == 1:
        yield value


def _cut(value: Any, part: slice | npt.NDArray[np.bool_], count: int) -> Any:
    """A part of every array in nested values; numbers stay."""
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        changed = {name: _cut(getattr(value, name), part, count) for name in names}
        return replace(value, **changed)  # type: ignore[type-var]
    return value[part] if np.ndim(value) == 1 and len(value) == count else value
