"""Transfers: one is under way when the worker that sends and the one that receives are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.rehearse.links import Arrival, Links
from paceline.rehearse.pairing import (
    Lane,
    Pairing,
    Side,
    check_transfers,
    count_transfers,
    lane_of,
)
from paceline.rehearse.played_worker import PlayedWorker
from paceline.teams.journal import Transfer


class Transfers:
    """The transfers of all workers; ValueError if some could never be received."""

    def __init__(self, workers: Sequence[PlayedWorker], links: Links) -> None:
        self._workers = workers
        self._links = links
        num_steps = len(workers[0].role.program)
        check_transfers(self._count(num_steps // 2), num_steps - num_steps // 2)
        self._pairing: Pairing[Arrival] = Pairing(self._count())

    def _count(self, start: int = 0) -> Counter[Side]:
        """Of all workers, from a step on."""
        roles = [worker.role for worker in self._workers]
        return sum(
            (
                count_transfers(
                    role.program, node_kind=role.node_kind, index=role.index, start=start
                )
                for role in roles
            ),
            Counter(),
        )

    def begin(self, arrival: Arrival, transfer: Transfer, *, step: int, background: bool) -> None:
        """A worker begins its side of a transfer."""
        role = arrival.worker.role
        lane = lane_of(
            transfer, background=background, node_kind=role.node_kind, index=role.index, step=step
        )
        together = self._pairing.post(lane, arrival, is_sent=transfer.is_sent)
        if together:
            self._carry(together, lane)

    def release(self) -> bool:
        """Let the first side go that waits for another node, which must be doing otherwise."""
        released = self._pairing.release()
        if released is None:
            return False
        lane, arrival = released
        self._carry([arrival], lane)
        return True

    def first_alone(self) -> Arrival | None:
        """The first side that waits for its other."""
        return self._pairing.first_alone()

    def _carry(self, arrivals: Sequence[Arrival], lane: Lane) -> None:
        """What one worker sends goes in order, and so does what one receives."""
        is_inside = lane.step is None
        ends = {True: ("out of", lane.source), False: ("into", lane.target)}
        lines = [
            (lane.background, is_inside, lane.node_kind, *ends[arrival.communication.what.is_sent])
            for arrival in arrivals
            if isinstance(arrival.communication.what, Transfer)
        ]
        self._links.carry(arrivals, "point_to_point", lines)
