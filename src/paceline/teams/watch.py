"""Who waits where: what every blocking call of a team tells, and whom it asks when it fails.

This class looks after nothing: a single worker has nobody to wait for, and virtual ones never do.
:class:`paceline.teams.store_watch.StoreWatch` looks after the workers of a real job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from paceline.teams.team import TeamError

MEETING = "meeting"
"""Stands for a team where workers meet without one."""
BACKGROUND = "background"
"""Stands for a team where the training waits for this worker's own background."""


_NUM_REMEMBERED = 64
_ABOUT_CONNECTIONS = ("connection", "timed out", "timeout", "broken pipe", "socket", "pair closure")


class Call(NamedTuple):
    """One operation of a team, as one of its workers calls it."""

    team: str
    kind: str
    number: int
    """Counts the team's operations from 1, alike on all of its workers."""
    peer: int | None = None
    """The job's rank of the worker that a message goes to or comes from."""

    def __str__(self) -> str:
        if self.team in (MEETING, BACKGROUND):
            return self.kind
        return f"{self.kind} over the team {self.team}"


class Begun(NamedTuple):
    """What a worker has begun over a team; the same for all of the team's members."""

    number: int
    kind: str
    num_bytes: int
    how: str = ""
    """What else must be the same: how numbers are combined, whose they are, their type."""


class Watch:
    """Takes note of what threads of this worker wait for; says nothing."""

    def __init__(self) -> None:
        self.waits: dict[int, tuple[Call, float]] = {}
        """By thread: what it waits in, and since when (``time.monotonic``)."""
        self.counts: dict[str, int] = {}
        """By team: how many operations this worker has begun."""
        self.begun: dict[str, deque[Begun]] = {}
        """By team: the last operations that this worker has begun."""
        self.step = 0
        """How many steps were taken."""
        self.is_checking = False
        """Whether members compare what they are about to begin, before each operation."""
        self.is_in_trouble = False
        """Whether something has failed, after which nothing is waited for any more."""
        self.background_work: Future[Any] | None = None
        """What the background does last."""

    def note(self, team: str, kind: str, num_bytes: int, how: str = "") -> Call:
        """This worker begins an operation that all of a team's members take part in."""
        number = self.counts[team] = self.counts.get(team, 0) + 1
        own = self.begun.setdefault(team, deque(maxlen=_NUM_REMEMBERED))
        own.append(Begun(number, kind, num_bytes, how))
        return Call(team, kind, number)

    def disagree(self, call: Call, begun: Mapping[int, Begun]) -> TeamError:
        """What to raise where members are about to begin different operations."""
        said = ", ".join(f"worker {rank}: {each.kind}" for rank, each in begun.items())
        return TeamError(f"{call} failed: the workers disagree on what it is ({said})")

    def at_step(self, step: int) -> None:
        """So many steps were taken."""
        self.step = step

    def meet(self, what: str) -> None:
        """Wait until all workers are here, which ``what`` names: ``finish()``.

        Not through a process group: a worker that is elsewhere may have begun a collective, and
        Gloo ends a process whose collective meets another one.
        """

    def explain(self, call: Call, error: Exception) -> TeamError:
        """What to raise where a call failed: who is to blame, in a sentence."""
        self.is_in_trouble = True
        return TeamError(f"{call} failed: {first_line(error)}")

    def fail(self, error: BaseException) -> None:
        """Tell the others why this worker will not come any more."""

    def close(self) -> None:
        """End whatever looks after the workers."""


def is_about_connections(error: BaseException) -> bool:
    """Whether a backend's error tells of other workers rather than of the call's arguments."""
    return any(word in str(error).lower() for word in _ABOUT_CONNECTIONS)


def first_line(error: BaseException) -> str:
    """An error's first line, or its name."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
