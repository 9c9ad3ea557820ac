"""What happens to a lab while a job runs on it, and when."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.cluster import Cluster
from paceline.cluster.units import format_bandwidth, parse_bandwidth, parse_duration
from paceline.lab.layout import check_rate

_LINK = re.compile(r"link(?:\s+(?P<node>\d+))?\s*=\s*(?P<rate>.+)")


@dataclass(frozen=True, kw_only=True)
class LabEvent:
    """Something to do at a moment of a job."""

    at_s: float
    """Seconds since the job was started."""
    act: Callable[[], None]
    """What to do then, such as ``lambda: lab.set_rate(6.25e6)``."""


class Timetable:
    """The events of one job, each acted on once, in the order of their moments.

    Args:
        events: What to do, and when.
    """

    def __init__(self, events: Sequence[LabEvent]) -> None:
        self._left = sorted(events, key=lambda event: event.at_s)
        self._begun_s = time.monotonic()

    def add(self, events: Sequence[LabEvent]) -> None:
        """Also act on these."""
        self._left = sorted([*self._left, *events], key=lambda event: event.at_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job was started."""
        return time.monotonic() - self._begun_s

    def act_on_due(self) -> None:
        """Act on the events whose moment has come."""
        while self._left and self._left[0].at_s <= self.elapsed_s:
            self._left.pop(0).act()


@dataclass(frozen=True, kw_only=True)
class LinkChange:
    """A new rate for a node's link, or for those of all nodes, at a moment of a job."""

    at_s: float
    node: int | None
    """None for all nodes."""
    rate_bytes_per_s: float

    def __str__(self) -> str:
        links = "all links" if self.node is None else f"the link of node {self.node}"
        return f"{links} at {format_bandwidth(self.rate_bytes_per_s, bits=True)} from now on"


def split_moment(option: str, text: str) -> tuple[str, float]:
    """What and when, in seconds, of ``"WHAT at TIME"``.

    Args:
        option: The option that the text was given for, to name it if the text is wrong.
        text: Such as ``"link=50mbit at 20s"``.
    """
    what, is_there, moment = text.rpartition(" at ")
    if not is_there:
        raise ValueError(f"{option} {text!r} does not say when; end it with a time, as in 'at 20s'")
    return what.strip(), parse_duration(moment)


def parse_changes(texts: Sequence[str], layout: Cluster) -> list[LinkChange]:
    """Changes of links from the command line, checked against the cluster they are in.

    Args:
        texts: Each ``link=RATE at TIME`` or, for one node's link, ``link NODE=RATE at TIME``.
        layout: The cluster that is emulated.
    """
    changes = []
    for text in texts:
        what, at_s = split_moment("--change", text)
        found = _LINK.fullmatch(what)
        if found is None:
            raise ValueError(
                f"--change {text!r} is not understood; write 'link=50mbit at 20s', or "
                "'link 1=50mbit at 20s' for the link of node 1"
            )
        node = None if found["node"] is None else int(found["node"])
        rate = parse_bandwidth(found["rate"])
        check_rate(rate)
        if node is not None and node >= len(layout.workers_per_node):
            raise ValueError(
                f"--change {text!r} names a node that is not there; nodes count from 0, and there "
                f"are {len(layout.workers_per_node)}"
            )
        changes.append(LinkChange(at_s=at_s, node=node, rate_bytes_per_s=rate))
    return changes
