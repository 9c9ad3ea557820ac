"""What one worker's program did, in order: the collectives, transfers and waits of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.cluster.collective import CollectiveKind
from paceline.teams.team import Op

TeamName = Literal["world", "node", "across"]

MOST_TICKETS = 50_000
"""Of one journal: what a worker may begin in a rehearsal, which plays all of it in some seconds."""
JOURNALS_IF_LATE = 4
"""About how many journals it takes to find out how late an exchange is."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective begins."""

    ticket: int
    team: TeamName
    kind: CollectiveKind
    num_bytes: int
    number: float | None = None
    """What this worker says where a team agrees on a number, if that is to be worked out."""
    op: Op = "sum"
    """How the members' numbers are combined."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A worker begins to send to another one, or to receive from it."""

    ticket: int
    team: TeamName
    is_sent: bool
    is_outward: bool
    """Whether the other worker is on another node."""
    offset: int
    """How far its place in its node is from this worker's in its own."""
    num_bytes: int
    is_behind: bool = False
    """Whether it is received, and this worker has begun to send to that one before."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on only when a communication, or work in the background, is over."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Poll:
    """The program asked whether something is over, and was told so or not."""

    ticket: int
    answer: bool


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """Work in the background, in order behind what was asked for before."""

    ticket: int
    events: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Background work leaves the links to others for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The program learnt a number that only a play can tell: the time, or what a team agreed on."""

    place: int
    """Among the readings of this program."""
    ticket: int | None = None
    """Of the collective by which the team agreed; None if the clock was read."""


@dataclass
class Journal:
    """What one worker's program did. Others may add events of their own kinds.

    A program may ask what nobody knows before times are put to its journal: whether something is
    over, what time it is. It is told what is assumed here; whoever puts times to the journal finds
    out whether that is right.
    """

    events: list[Any] = field(default_factory=list)
    lateness: int = 0
    """How often a program that asks whether something is over is told that it is not."""
    readings: Sequence[float] | None = None
    """What a program reads of the clock and hears from teams that agree, one after another. None:
    it is not known yet whether it matters, and the clock's uses are watched."""
    is_time_used: bool = False
    """Whether the program did more with the time than add it up."""
    _num_tickets: int = 0
    _num_readings: int = 0

    def append(self, event: Any) -> None:
        """Add an event."""
        self.events.append(event)

    def new_ticket(self) -> int:
        """A number that nothing in this journal has yet."""
        self._num_tickets += 1
        most = MOST_TICKETS // (JOURNALS_IF_LATE if self.lateness else 1)
        if self._num_tickets > most:
            raise ValueError(
                f"a rehearsal of this strategy sends more than {most:,} messages, which would "
                "take too long: give it larger chunks or buckets, or a shorter period"
            )
        return self._num_tickets

    def next_reading(self, otherwise: float, ticket: int | None = None) -> float:
        """Note that the program reads a number, and give the one that is assumed."""
        assert self.readings is not None
        place = self._num_readings
        self._num_readings += 1
        self.append(Reading(place, ticket))
        return self.readings[place] if place < len(self.readings) else otherwise

    def take(self) -> list[Any]:
        """All events since the last call."""
        taken, self.events = self.events, []
        return taken

    @contextmanager
    def aside(self) -> Iterator[list[Any]]:
        """Inside, events go to a list of their own."""
        before, self.events = self.events, []
        own = self.events
        try:
            yield own
        finally:
            self.events = before
