"""Stage 3, play: a discrete-event simulation of the workers that differ.

Every worker has a host that issues, a device that follows, and a background beside them. A
collective begins when its last member arrives and its team has ended the one before, a transfer
when both workers are there and have ended theirs before; waiting holds up the device (a GPU's
stream) or the host (a CPU's thread). Workers that do the same are played once: nodes of one kind by
one node, and a node's workers by one of them if their programs are the same.

Which event comes next depends on the programs alone and never on times, which only enter sums and
maxima. So all times may be arrays, and one play is then as many as the arrays are long.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.collectives import Numbers
from paceline.rehearse.jitter import later_of_two_s, slowest_s
from paceline.rehearse.layout import Read
from paceline.rehearse.links import Arrival, Key, Links
from paceline.rehearse.meetings import Meetings
from paceline.rehearse.played_worker import Over, PlayedWorker
from paceline.rehearse.program import Communication, Operation, Programs, Role, Work
from paceline.rehearse.spans import SpanLog, label
from paceline.rehearse.timeline import Played, Timeline
from paceline.rehearse.transfers import Transfers
from paceline.rehearse.worker_clock import WorkerClock
from paceline.teams.journal import BackgroundWork, Collective, Pause, Poll, Reading, Wait

_Process: TypeAlias = Generator[Key, None, None]
_Waiting: TypeAlias = list[tuple[_Process, Key | None]]  # and what each waits for
_AT_ONCE: Key = (-1, 0)  # what a process waits for that only lets others go first


def play(programs: Programs, *, with_spans: bool = False) -> Timeline:
    """Play programs together until all have ended.

    Args:
        programs: What the workers do, with its prices.
        with_spans: Whether to note what happened when, for a trace.

    """
    played = play_roles(programs.roles, with_spans=with_spans)
    return Timeline(played=played, recording=programs.recording, roles=programs.roles)


def play_roles(roles: Sequence[Role], *, with_spans: bool = False) -> Played:
    """Play the roles' programs until all have ended."""
    return _Player(roles, with_spans=with_spans).play()


class _Player:
    """Lets every worker and every background go on until it has to wait for another."""

    def __init__(self, roles: Sequence[Role], *, with_spans: bool) -> None:
        self._log = SpanLog(is_wanted=with_spans)
        self._workers = [PlayedWorker(place, role, self._log) for place, role in enumerate(roles)]
        self._links = Links()
        self._over = self._links.over
        self._over[_AT_ONCE] = Over(0.0, "node")
        self._meetings = Meetings(self._workers, self._links)
        self._transfers = Transfers(self._workers, self._links)
        # What need not be waited for where nobody could go on otherwise, and what no longer is.
        self._soft: set[Key] = set()
        self._freed: set[Key] = set()
        self._asked_for: _Waiting = []
        self._last_background: dict[int, Key] = {}
        self._premature: npt.NDArray[np.bool_] = np.array(False)

    def play(self) -> Played:
        mains: _Waiting = [(self._main(worker), None) for worker in self._workers]
        background: _Waiting = []
        while mains or background:
            mains, has_moved = self._advance(mains)
            # What background work takes from the main programs must be known before they go on.
            background = [*background, *self._asked_for]
            self._asked_for = []
            moves = True
            while moves:
                background, moves = self._advance(background)
                has_moved = has_moved or moves
            if not has_moved and not self._let_go([*mains, *background]):
                raise ValueError(self._who_is_missing())
        ends = np.stack(
            np.broadcast_arrays(*(end for worker in self._workers for end in worker.ends_s))
        )
        return Played(
            ends_s=ends.reshape(len(self._workers), -1, *ends.shape[1:]),
            premature=self._premature,
            spans=tuple(self._log.spans),
            readings=tuple(worker.all_readings() for worker in self._workers),
        )

    def _advance(self, waiting: _Waiting) -> tuple[_Waiting, bool]:
        """Let each go on that can, until it waits again; who is left, and whether anybody went."""
        still: _Waiting = []
        has_moved = False
        for process, key in waiting:
            if key is not None and key not in self._over and key not in self._freed:
                still.append((process, key))
                continue
            has_moved = True
            if key is not None:
                self._freed.discard(key)
            blocked = next(process, None)
            if blocked is not None:
                still.append((process, blocked))
        return still, has_moved

    def _let_go(self, waiting: _Waiting) -> bool:
        """Nobody can go on: let those go on who need not wait, if there are any.

        First who has begun a collective and does not need its result yet; then transfers to other
        nodes, which must be doing something else than the one that was recorded.
        """
        soft = [key for _, key in waiting if key is not None and key in self._soft]
        if soft:
            self._soft.difference_update(soft)
            self._freed.update(soft)
            return True
        return self._transfers.release()

    def _who_is_missing(self) -> str:
        alone = self._transfers.first_alone()
        if alone is None:
            return self._meetings.who_is_missing()
        return (
            f"Workers would wait for ever: {self._meetings.title(alone.worker)} begins "
            f"{label(alone.communication.what)}, and the other worker waits for something else "
            "before it does its part."
        )

    def _main(self, worker: PlayedWorker) -> _Process:
        clock = WorkerClock()
        begun_s: Numbers = 0.0
        for number, operations in enumerate(worker.role.program):
            yield from self._run(worker, operations, clock, None, step=number, background=False)
            clock.end_step()
            worker.ends_s.append(clock.ready_s)
            worker.note("step", f"step {number}", begun_s, clock.ready_s)
            begun_s = clock.ready_s

    def _begin_background(
        self, worker: PlayedWorker, work: BackgroundWork, clock: WorkerClock, step: int
    ) -> None:
        """In order: behind the background work that was asked for before."""
        process = self._background(worker, work, clock.copy(), step)
        self._asked_for.append((process, self._last_background.get(worker.number)))
        self._last_background[worker.number] = (worker.number, work.ticket)

    def _background(
        self, worker: PlayedWorker, work: BackgroundWork, asked: WorkerClock, step: int
    ) -> _Process:
        start_s = np.maximum(asked.ready_s, worker.background_s)
        clock = WorkerClock(start_s, start_s, asked.variance, asked.variance_of_node)
        busy_until_s = worker.busy_until_s(work.ticket, asked)
        yield from self._run(worker, work.events, clock, busy_until_s, step=step, background=True)
        worker.background_s = clock.ready_s
        self._over[worker.number, work.ticket] = Over(clock.ready_s, "across")
        worker.note("background", "exchange", start_s, clock.ready_s)

    def _run(
        self,
        worker: PlayedWorker,
        operations: Sequence[Operation],
        clock: WorkerClock,
        busy_until_s: Numbers | None,
        *,
        step: int,
        background: bool,
    ) -> _Process:
        """``busy_until_s``: when the main program is through with what it computes beside this."""
        for operation in operations:
            if isinstance(operation, Work):
                worker.work(operation, clock, background=background)
            elif isinstance(operation, Communication):
                until_s = busy_until_s
                if not background:
                    until_s = worker.busy_until_s(operation.ticket, clock)
                if not self._begin(worker, operation, clock, until_s, step, background=background):
                    # What is computed next depends on when the others come.
                    key = (worker.number, operation.ticket)
                    self._soft.add(key)
                    yield key
            elif isinstance(operation, Wait):
                key = (worker.number, operation.ticket)
                if key not in self._over:
                    yield key
                worker.wait(self._over[key], clock, background=background)
            elif isinstance(operation, Poll):
                if operation.answer:
                    key = (worker.number, operation.ticket)
                    if key not in self._over:
                        yield key
                    self._premature = self._premature | (self._over[key].at_s > clock.host_s)
            elif isinstance(operation, BackgroundWork):
                self._begin_background(worker, operation, clock, step)
                yield _AT_ONCE
            elif isinstance(operation, Read):
                clock.host_s = clock.ready_s
            elif isinstance(operation, Pause):
                clock.hold(clock.ready_s + operation.seconds, host=True)
            elif isinstance(operation, Reading):
                if operation.ticket is None:
                    found = float(np.max(clock.host_s))
                else:  # the host needs the number that the team agrees on
                    over = self._over[worker.number, operation.ticket]
                    clock.hold(over.at_s, host=True)
                    found = over.agreed
                worker.readings[operation.place] = found

    def _begin(
        self,
        worker: PlayedWorker,
        communication: Communication,
        clock: WorkerClock,
        busy_until_s: Numbers | None,
        step: int,
        *,
        background: bool,
    ) -> bool:
        """A worker begins its part; whether it can go on at once."""
        what = communication.what
        if isinstance(what, Collective):
            came_s = slowest_s(worker.rules, what.team, clock)
            arrival = Arrival(worker, communication, came_s, busy_until_s)
            return self._meetings.arrive(arrival, what, background=background)
        came_s = later_of_two_s(worker.rules, clock, is_outward=what.is_outward)
        arrival = Arrival(worker, communication, came_s, busy_until_s)
        self._transfers.begin(arrival, what, step=step, background=background)
        return True
