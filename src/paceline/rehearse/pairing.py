"""Transfers from one worker to another: which send belongs to which receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from paceline.rehearse.program import Communication, Operation, Program
from paceline.teams.journal import BackgroundWork, TeamName, Transfer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lane:
    """Where transfers follow one another: from one place in a node to another.

    Inside a node both workers were recorded, and their transfers pair up in order. Of the nodes
    only one was, and others of its kind are assumed to do the same: a worker that sends to another
    node gets, in the same step, such a transfer from a third.
    """

    team: TeamName
    background: bool
    node_kind: int
    source: int
    target: int
    step: int | None
    """Of a transfer to another node: the step in which it begins."""


Side = tuple[Lane, bool]  # and whether it is the sender's


def lane_of(transfer: Transfer, *, background: bool, node_kind: int, index: int, step: int) -> Lane:
    """The lane of a transfer of a worker that has this place in a node of this kind."""
    other = index + transfer.offset
    source, target = (index, other) if transfer.is_sent else (other, index)
    own_step = step if transfer.is_outward else None
    return Lane(transfer.team, background, node_kind, source, target, own_step)


def count_transfers(
    program: Program, *, node_kind: int, index: int, start: int = 0
) -> Counter[Side]:
    """How many transfers a program has from a step on, by lane and side."""
    found: Counter[Side] = Counter()
    for step in range(start, len(program)):
        for background, transfer in _transfers(program[step], background=False):
            lane = lane_of(
                transfer, background=background, node_kind=node_kind, index=index, step=step
            )
            found[lane, transfer.is_sent] += 1
    return found


def check_transfers(late: Counter[Side], num_steps: int) -> None:
    """ValueError if workers of a node do not receive what others of it send.

    ``late`` are the transfers of the last so many steps: before, receiving may still have to begin,
    and what is sent last may be received after what was recorded.
    """
    for lane in dict.fromkeys(lane for lane, _ in late if lane.step is None):
        sent, received = late[lane, True], late[lane, False]
        a_step = -(-max(sent, received) // num_steps)
        if sent and received and abs(sent - received) <= a_step:
            continue
        raise ValueError(
            f"Workers would wait for ever: of the messages from worker {lane.source} of a node to "
            f'worker {lane.target} by the team "{lane.team}", {sent} are sent and {received} are '
            f"received in {num_steps} steps."
        )


class Pairing(Generic[T]):
    """Brings the two sides of each transfer together; a side is whatever the player makes of it."""

    def __init__(self, counts: Counter[Side]) -> None:
        self._counts = counts
        self._posted: Counter[Side] = Counter()
        self._alone: dict[tuple[Lane, int], T] = {}
        self._released: set[tuple[Lane, int]] = set()

    def post(self, lane: Lane, side: T, *, is_sent: bool) -> list[T]:
        """The sides that are together with this one; none if the other has still to come.

        A side is by itself if the other is a node that was not played, or a step after those that
        were.
        """
        number = self._posted[lane, is_sent]
        self._posted[lane, is_sent] += 1
        has_other = self._counts[lane, not is_sent] > number
        if not has_other or (lane, number) in self._released:
            return [side]
        if (lane, number) in self._alone:
            return [self._alone.pop((lane, number)), side]
        self._alone[lane, number] = side
        return []

    def release(self) -> tuple[Lane, T] | None:
        """Let the first side that waits for another node go by itself."""
        for lane, number in self._alone:
            if lane.step is not None:
                self._released.add((lane, number))
                return lane, self._alone.pop((lane, number))
        return None

    def first_alone(self) -> T | None:
        """The first side that waits for its other."""
        return next(iter(self._alone.values()), None)


def _transfers(
    operations: Sequence[Operation], *, background: bool
) -> Iterator[tuple[bool, Transfer]]:
    for operation in operations:
        if isinstance(operation, Communication) and isinstance(operation.what, Transfer):
            yield background, operation.what
        elif isinstance(operation, BackgroundWork):
            yield from _transfers(operation.events, background=True)
