"""The clock of a rehearsed worker, and whether it matters what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.teams.journal import Journal

_TICK_S = 1e-9  # a clock that is read twice has moved on, as a real one has


class VirtualClock:
    """Virtual seconds, as the journal assumes them.

    Times are not known while a program is recorded. Most programs only add up how long they
    waited, so the first time everybody reads a :class:`WatchedTime`, which finds out whether that
    is all. Only where it is not, the program is recorded again with the times of its play.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._num_ticks = 0
        self._last_s = 0.0

    def __call__(self) -> float:
        """The virtual time of this worker."""
        self._num_ticks += 1
        tick_s = self._num_ticks * _TICK_S
        if self._journal.readings is None:
            return WatchedTime(tick_s, self._journal)
        self._last_s = self._journal.next_reading(self._last_s)
        return self._last_s + tick_s


class WatchedTime(float):
    """A time that may be added and subtracted; every other use of it is noted in the journal.

    Functions written in C that take a float as it is, such as ``math.log``, go unnoticed.
    """

    _journal: Journal

    def __new__(cls, seconds: float, journal: Journal) -> WatchedTime:
        """Make one that notes its uses in a journal."""
        made = super().__new__(cls, seconds)
        made._journal = journal
        return made


def _summed(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: WatchedTime, other: Any) -> Any:
        result = plain(self, other)
        return result if result is NotImplemented else WatchedTime(result, self._journal)

    return method


def _used(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: WatchedTime, *others: Any) -> Any:
        self._journal.is_time_used = True
        return plain(self, *others)

    return method


_SUMS = ("__add__", "__radd__", "__sub__", "__rsub__")
_USES = (
    *("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__", "__hash__"),
    *("__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__floordiv__", "__rfloordiv__"),
    *("__mod__", "__rmod__", "__divmod__", "__rdivmod__", "__pow__", "__rpow__"),
    *("__neg__", "__pos__", "__abs__", "__int__", "__float__", "__round__", "__trunc__"),
    *("__floor__", "__ceil__", "as_integer_ratio", "is_integer", "hex"),
)
for _name in _SUMS:
    setattr(WatchedTime, _name, _summed(_name))
for _name in _USES:
    setattr(WatchedTime, _name, _used(_name))
