"""Where one limit gives way to another, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.studies.points import Array
from paceline.studies.words import counted

LINK_LIMITS = ("link bandwidth", "link latency")
EFFICIENT = 0.8
"""The efficiency that a cluster is usually expected to reach."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A strategy's step along the number of workers."""

    workers: Array
    bottleneck: Array
    efficiency: Array


def crossings_of(strategy: str, own: Curve, with_twice_the_link: Callable[[], Curve]) -> list[str]:
    """Sentences on where links begin to limit, and on where efficiency falls under 80 %."""
    found = []
    links_from = first_for_good(np.isin(own.bottleneck, LINK_LIMITS))
    if links_from is None:
        found.append(
            f"{strategy}: the links do not limit, up to {counted(int(own.workers[-1]), 'worker')}."
        )
    else:
        twice = with_twice_the_link()
        then = first_for_good(np.isin(twice.bottleneck, LINK_LIMITS))
        found.append(
            f"{strategy}: {_beyond(own.workers, links_from)} the links limit; doubling their "
            f"bandwidth {_moved(twice.workers, links_from, then)}."
        )
    fallen = first_for_good(own.efficiency < EFFICIENT)
    if fallen is not None:
        found.append(
            f"{strategy}: {_beyond(own.workers, fallen)} the efficiency is below {EFFICIENT:.0%}."
        )
    return found


def told_once(names: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """What holds for several strategies, in one sentence with all of their names."""
    of_sentence: dict[str, list[str]] = {}
    for sentence in sentences:
        name, _, rest = sentence.partition(": ")
        of_sentence.setdefault(rest, []).append(name)
    return [
        f"{'all strategies' if len(own) == len(names) > 1 else ', '.join(own)}: {rest}"
        for rest, own in of_sentence.items()
    ]


def first_for_good(is_so: Array) -> int | None:
    """The first place from which on it is always so."""
    if not len(is_so) or not is_so[-1]:
        return None
    others = np.flatnonzero(~is_so)
    return int(others[-1]) + 1 if len(others) else 0


def _beyond(workers: Array, place: int) -> str:
    return f"beyond {counted(int(workers[place - 1]), 'worker')}" if place else "from the start"


def _moved(workers: Array, before: int, after: int | None) -> str:
    if after is None:
        return f"moves that beyond {int(workers[-1]):,}"
    if after <= before:
        return "does not change that"
    return f"moves that to {int(workers[after - 1]):,}"
