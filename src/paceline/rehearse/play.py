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

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.jitter import later_of_two_s, slowest_s
from paceline.rehearse.layout import Read
from paceline.rehearse.links import Arrival, Key, Links
from paceline.rehearse.meetings import Meetings
from paceline.rehearse.played_worker import Over, PlayedWorker
from paceline.rehearse.program import Communication, Operation, Programs, Role, Work
from paceline.rehearse.sharing import Sharing
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
    roles = programs.roles if with_spans else _that_differ(programs.roles)
    played = play_roles(roles, with_spans=with_spans)
    return Timeline(played=played, recording=programs.recording, roles=roles)


def _that_differ(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """One for all workers of a node that do the same."""
    if len({role.node_kind for role in roles}) > 1:
        return roles  # workers of another kind of node have to meet each of them
    counts = Counter(id(role.program) for role in roles)
    firsts = {id(role.program): role for role in reversed(roles)}
    return tuple(
        replace(role, num_alike=counts[id(role.program)])
        for role in roles
        if firsts[id(role.program)] is role
    )


def play_roles(roles: Sequence[Role], *, with_spans: bool = False) -> Played:
    """Play the roles' programs until all have ended."""
    return _Player(roles, with_spans=with_spans).play()


class _Player:
    """Lets every worker and every background go on until it has to wait for another."""

    def __init__(self, roles: Sequence[Role], *, with_spans: bool) -> None:
        self._log = SpanLog(is_wanted=with_spans)
        self._sharing = Sharing()
        self._workers = [
            PlayedWorker(place, role, self._log, self._sharing) for place, role in enumerate(roles)
        ]
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
        self._late_s: Numbers = 0.0

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
            late_s=self._late_s,
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
            end_s = self._sharing.advance(clock, WorkerClock.end_step)
            worker.ends_s.append(end_s)
            worker.note("step", f"step {number}", begun_s, end_s)
            begun_s = end_s

    def _begin_background(
        self, worker: PlayedWorker, work: BackgroundWork, clock: WorkerClock, step: int
    ) -> None:
        """In order: behind the background work that was asked for before."""
        process = self._background(worker, work, replace(clock), step)
        self._asked_for.append((process, self._last_background.get(worker.number)))
        self._last_background[worker.number] = (worker.number, work.ticket)

    def _background(
        self, worker: PlayedWorker, work: BackgroundWork, asked: WorkerClock, step: int
    ) -> _Process:
        clock = replace(asked)
        self._sharing.advance(clock, WorkerClock.begin_background, worker.background_s)
        start_s = clock.host_s
        busy_until_s = worker.busy_until_s(work.ticket, asked)
        yield from self._run(worker, work.events, clock, busy_until_s, step=step, background=True)
        worker.background_s = end_s = self._sharing.same(clock.ready_s)
        self._over[worker.number, work.ticket] = Over(end_s, "across")
        worker.note("background", "exchange", start_s, end_s)

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
                    at_s = self._over[key].at_s
                    late_s = self._sharing.advance(clock, WorkerClock.until_s, at_s)
                    self._late_s = np.maximum(self._late_s, late_s)
            elif isinstance(operation, BackgroundWork):
                self._begin_background(worker, operation, clock, step)
                yield _AT_ONCE
            elif isinstance(operation, Read):
                self._sharing.advance(clock, WorkerClock.read)
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
            came_s = self._sharing.advance(clock, slowest_s, worker.rules, what.team)
            arrival = Arrival(worker, communication, came_s, busy_until_s)
            return self._meetings.arrive(arrival, what, background=background)
        came_s = self._sharing.advance(clock, later_of_two_s, worker.rules, what.is_outward)
        arrival = Arrival(worker, communication, came_s, busy_until_s)
        self._transfers.begin(arrival, what, step=step, background=background)
        return True
