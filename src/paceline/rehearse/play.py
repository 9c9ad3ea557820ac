"""Play programs together: a discrete-event simulation of the workers that differ.

Every worker has a host that issues, a device that follows, and a background beside them. A
collective begins when its last member arrives and its team has ended the one before, a message when
both workers are there and have ended theirs before; waiting holds up the device (a GPU's stream) or
the host (a CPU's thread). Workers that do alike are played once:
nodes of one kind by one node, and a node's workers by one of them if their programs are the same.

Which event comes next depends on the programs alone and never on times, which only enter sums and
maxima. So all times may be arrays, and one play is then as many as the arrays are long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.cluster.collective import CollectiveKind
from paceline.collectives import Numbers
from paceline.rehearse.busy import slowed, work_beside
from paceline.rehearse.clock import Clock
from paceline.rehearse.mail import Lane, Mailbox, check_mails, count_mails, lane_of
from paceline.rehearse.program import Mail, Meet, Operation, Program, Read, Work
from paceline.rehearse.straggler import slowest_of
from paceline.teams.virtual import Ask, Await, Beside, Message, Pause, TeamName
from paceline.traces.trace import Span, collective_name

CollectiveCost: TypeAlias = Callable[[TeamName, CollectiveKind, int, float], Numbers]
"""Seconds of a collective: team, kind, bytes, which share of the node's workers do one at once."""
_Key: TypeAlias = tuple[int, int]  # worker, ticket
_Process: TypeAlias = Generator[_Key, None, None]
_Waiting: TypeAlias = list[tuple[_Process, _Key | None]]  # and what each waits for
_AT_ONCE: _Key = (-1, 0)  # what a process waits for that only lets others go first


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """What holds on a kind of node."""

    workers: Numbers
    """Of one node."""
    nodes: Numbers = 1
    """How many nodes there are of this kind."""
    serial: bool
    """Whether the host computes what it issues, as a CPU does."""
    collective: CollectiveCost
    interference: dict[TeamName, Numbers] = field(default_factory=dict)
    """The share of its speed that computing loses while a collective of a team is under way."""
    busy_factor: dict[TeamName, Numbers] = field(default_factory=dict)
    """How many times as long a team's collectives take while the workers compute; 1 if empty."""
    jitter: float = 0.0
    """How much a worker's time varies: its standard deviation over its mean."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """A worker that is played, for itself or for all that do alike."""

    program: Program
    rules: NodeRules
    node_kind: int = 0
    index: int = 0
    """The worker's place in its node."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """When each role ended each step, and what happened meanwhile."""

    ends_s: npt.NDArray[np.float64]
    """(roles, steps, ...)."""
    premature: npt.NDArray[np.bool_]
    """Whether a program was told that something was over while it was not."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Over:
    """A collective or background work that has an end."""

    at_s: Numbers
    team: TeamName


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A worker that has come to a collective, or to a message."""

    worker: int
    what: Meet | Message
    talking: float
    """The share of its node's workers that talk to other nodes at that time."""
    came_s: Numbers
    busy_until_s: Numbers | None
    """When it is through with what it computes before it needs the result, if that matters."""


def _place(what: Meet | Message) -> TeamName:
    """Whose links it takes, and who waits with whom: a message has two workers in or out."""
    if isinstance(what, Meet):
        return what.team
    return "across" if what.is_outward else "node"


def _is_behind(what: Meet | Message) -> bool:
    return isinstance(what, Message) and what.is_behind


def _label(what: Meet | Message) -> str:
    """What it is called in traces."""
    if isinstance(what, Meet):
        return collective_name(what.kind, what.num_bytes)
    return collective_name("send" if what.is_sent else "receive", what.num_bytes)


def _busy_until_s(arrivals: Sequence[_Arrival], start_s: Numbers) -> Numbers:
    """When the last member is through with what it computes beside a collective."""
    until_s = start_s
    for arrival in arrivals:
        if arrival.busy_until_s is not None:
            until_s = np.maximum(until_s, arrival.busy_until_s)
    return until_s


def play(roles: Sequence[Role], *, with_spans: bool = False) -> Played:
    """Play the roles' programs until all have ended."""
    return _Player(roles, with_spans=with_spans).play()


class _Player:
    def __init__(self, roles: Sequence[Role], *, with_spans: bool) -> None:
        self._roles = roles
        self._over: dict[_Key, _Over] = {_AT_ONCE: _Over(0.0, "node")}
        self._arrivals: dict[tuple[bool, str, int], list[_Arrival]] = defaultdict(list)
        # What need not be waited for where nobody could go on otherwise, and what no longer is.
        self._soft: set[_Key] = set()
        self._freed: set[_Key] = set()
        num_steps = len(roles[0].program)
        check_mails(self._count_mails(num_steps // 2), num_steps - num_steps // 2)
        self._mailbox: Mailbox[_Arrival] = Mailbox(self._count_mails())
        self._counts: dict[tuple[int, bool, str], int] = defaultdict(int)
        self._free_s: dict[tuple[object, ...], Numbers] = defaultdict(float)
        self._background_s: list[Numbers] = [0.0] * len(roles)
        self._asked_for: _Waiting = []
        self._last_beside: list[_Key | None] = [None] * len(roles)
        self._work_beside = [
            work_beside(role.program) if role.rules.busy_factor else {} for role in roles
        ]
        self._under_way: list[list[tuple[Numbers, Numbers, Numbers]]] = [[] for _ in roles]
        self._ends: list[list[Numbers]] = [[] for _ in roles]
        self._premature: npt.NDArray[np.bool_] = np.array(False)
        self._spans: list[Span] | None = [] if with_spans else None

    def _count_mails(self, start: int = 0) -> Counter[tuple[Lane, bool]]:
        """Of all roles, from a step on."""
        return sum(
            (
                count_mails(role.program, node_kind=role.node_kind, index=role.index, start=start)
                for role in self._roles
            ),
            Counter(),
        )

    def play(self) -> Played:
        mains: _Waiting = [(self._main(worker), None) for worker in range(len(self._roles))]
        beside: _Waiting = []
        while mains or beside:
            mains, has_moved = self._advance(mains)
            # What background work takes from the main programs must be known before they go on.
            beside = [*beside, *self._asked_for]
            self._asked_for = []
            moves_beside = True
            while moves_beside:
                beside, moves_beside = self._advance(beside)
                has_moved = has_moved or moves_beside
            if not has_moved and not self._let_go([*mains, *beside]):
                raise ValueError(self._who_is_missing())
        ends = np.stack(np.broadcast_arrays(*(end for own in self._ends for end in own)))
        return Played(
            ends_s=ends.reshape(len(self._roles), -1, *ends.shape[1:]),
            premature=self._premature,
            spans=tuple(self._spans or ()),
        )

    def _let_go(self, waiting: _Waiting) -> bool:
        """Nobody can go on: let those go on who need not wait, if there are any.

        First who has begun a collective and does not need its result yet; then messages to other
        nodes, which must be doing something else than the one that was recorded.
        """
        soft = [key for _, key in waiting if key is not None and key in self._soft]
        if soft:
            self._soft.difference_update(soft)
            self._freed.update(soft)
            return True
        released = self._mailbox.release()
        if released is None:
            return False
        lane, arrival = released
        self._carry_mail([arrival], lane)
        return True

    def _who_is_missing(self) -> str:
        """Why the programs cannot go on: a collective that not all members of its team begin."""
        alone = self._mailbox.first_alone()
        if alone is not None:
            return (
                f"Workers would wait for ever: {self._called(alone.worker)} begins "
                f"{_label(alone.what)}, and the other worker waits for something else before it "
                "does its part."
            )
        (_, name, _), (first, *others) = next(iter(self._arrivals.items()))
        came = {first.worker, *(arrival.worker for arrival in others)}
        missing = next(
            worker
            for worker in range(len(self._roles))
            if worker not in came and self._team(worker, first.what.team)[1] == name
        )
        return (
            f"Workers would wait for ever: {self._called(first.worker)} begins a collective of its "
            f'team "{first.what.team}", and {self._called(missing)} never does. All members of a '
            "team must begin its collectives, in the same order."
        )

    def _called(self, worker: int) -> str:
        role = self._roles[worker]
        several = len({each.node_kind for each in self._roles}) > 1
        kind = f"a node of kind {role.node_kind}" if several else "a node"
        return f"worker {role.index} of {kind}"

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

    def _main(self, worker: int) -> _Process:
        clock = Clock()
        begun_s: Numbers = 0.0
        for number, operations in enumerate(self._roles[worker].program):
            yield from self._run(worker, operations, clock, None, step=number, background=False)
            clock.end_step()
            self._ends[worker].append(clock.ready_s)
            self._note(worker, "step", f"step {number}", begun_s, clock.ready_s)
            begun_s = clock.ready_s

    def _beside(self, worker: int, beside: Beside, asked: Clock, step: int) -> _Process:
        start_s = np.maximum(asked.ready_s, self._background_s[worker])
        clock = Clock(start_s, start_s, asked.variance, asked.node_variance)
        busy_until_s = None
        if self._roles[worker].rules.busy_factor:
            busy_until_s = asked.ready_s + self._work_beside[worker][beside.ticket]
        yield from self._run(worker, beside.events, clock, busy_until_s, step=step, background=True)
        self._background_s[worker] = clock.ready_s
        self._over[worker, beside.ticket] = _Over(clock.ready_s, "across")
        self._note(worker, "background", "exchange", start_s, clock.ready_s)

    def _run(
        self,
        worker: int,
        operations: Sequence[Operation],
        clock: Clock,
        busy_until_s: Numbers | None,
        *,
        step: int,
        background: bool,
    ) -> _Process:
        """``busy_until_s``: when the main program is through with what it computes beside this."""
        rules = self._roles[worker].rules
        for operation in operations:
            if isinstance(operation, Work):
                self._work(worker, operation, clock, background=background)
            elif isinstance(operation, Meet):
                until_s = busy_until_s
                if rules.busy_factor and not background:
                    until_s = clock.ready_s + self._work_beside[worker][operation.ticket]
                if self._arrive(worker, operation, clock, until_s, background=background):
                    continue
                # What is computed next depends on when the others come.
                self._soft.add((worker, operation.ticket))
                yield worker, operation.ticket
            elif isinstance(operation, Mail):
                until_s = busy_until_s
                if rules.busy_factor and not background:
                    until_s = clock.ready_s + self._work_beside[worker][operation.ticket]
                self._post(worker, operation, clock, until_s, step=step, background=background)
            elif isinstance(operation, Await):
                key = (worker, operation.ticket)
                if key not in self._over:
                    yield key
                # Background work is a thread that waits; the main program's device does.
                before_s = clock.ready_s
                self._hold(worker, self._over[key], clock, host=rules.serial or background)
                if not background:
                    self._note(worker, "compute", "wait", before_s, clock.ready_s)
            elif isinstance(operation, Ask):
                if operation.answer:
                    key = (worker, operation.ticket)
                    if key not in self._over:
                        yield key
                    self._premature = self._premature | (self._over[key].at_s > clock.host_s)
            elif isinstance(operation, Beside):
                self._begin_beside(worker, operation, clock, step)
                yield _AT_ONCE
            elif isinstance(operation, Read):
                clock.host_s = clock.ready_s
            elif isinstance(operation, Pause):
                clock.hold(clock.ready_s + operation.seconds, host=True)

    def _begin_beside(self, worker: int, beside: Beside, clock: Clock, step: int) -> None:
        asked = Clock(clock.host_s, clock.device_s, clock.variance, clock.node_variance)
        # In order: behind the background work that was asked for before.
        process = self._beside(worker, beside, asked, step)
        self._asked_for.append((process, self._last_beside[worker]))
        self._last_beside[worker] = (worker, beside.ticket)

    def _hold(self, worker: int, over: _Over, clock: Clock, *, host: bool) -> None:
        before_s = clock.ready_s
        clock.hold(over.at_s, host=host)
        if self._roles[worker].rules.jitter:
            self._forget_lead(worker, over, before_s, clock)

    def _forget_lead(self, worker: int, over: _Over, before_s: Numbers, clock: Clock) -> None:
        """Who waited for others is as late as they are."""
        waited = over.at_s > before_s
        if over.team == "node":
            _, variance = slowest_of(self._roles[worker].rules.workers)
            grown = clock.node_variance + clock.variance * variance
            clock.node_variance = np.where(waited, grown, clock.node_variance)
        else:
            clock.node_variance = np.where(waited, 0.0, clock.node_variance)
        clock.own_variance = np.where(waited, 0.0, clock.own_variance)
        clock.step_deviation = np.where(waited, 0.0, clock.step_deviation)

    def _work(self, worker: int, work: Work, clock: Clock, *, background: bool) -> None:
        rules = self._roles[worker].rules
        if rules.serial:
            busy_s = work.host_s + work.device_s
            end_s = clock.host_s + busy_s
        else:
            busy_s = work.device_s
            end_s = np.maximum(clock.device_s + busy_s, clock.host_s + work.lag_s)
        if background:
            # It shares the device with the main program: both get half of it.
            end_s = end_s + busy_s
            self._under_way[worker].append((end_s - 2 * busy_s, end_s, 0.5))
        else:
            end_s = self._stretched(worker, end_s - busy_s, busy_s)
            if rules.jitter:
                clock.step_deviation = clock.step_deviation + rules.jitter * busy_s
        clock.host_s = end_s if rules.serial else clock.host_s + work.host_s
        clock.device_s = end_s
        if not background:
            self._note(worker, "compute", work.name, end_s - busy_s, end_s)

    def _stretched(self, worker: int, begin_s: Numbers, busy_s: Numbers) -> Numbers:
        """When work ends that communication takes some speed from while it is under way."""
        end_s = begin_s + busy_s
        if not self._under_way[worker]:
            return end_s
        for start_s, over_s, share in self._under_way[worker]:
            both_begin_s = np.maximum(begin_s, start_s)
            left_s = np.maximum(end_s - both_begin_s, 0.0)
            together_s = np.maximum(over_s - both_begin_s, 0.0)
            end_s = end_s + np.minimum(left_s * share / (1 - share), together_s * share)
        self._under_way[worker] = [
            each for each in self._under_way[worker] if np.any(each[1] > end_s)
        ]
        return end_s

    def _arrive(
        self,
        worker: int,
        meet: Meet,
        clock: Clock,
        busy_until_s: Numbers | None,
        *,
        background: bool,
    ) -> bool:
        """A member comes to a collective; whether it was the last."""
        members, name = self._team(worker, meet.team)
        count = self._counts[worker, background, meet.team]
        self._counts[worker, background, meet.team] = count + 1
        arrivals = self._arrivals[background, name, count]
        came_s = self._slowest_s(worker, meet.team, clock)
        arrivals.append(_Arrival(worker, meet, meet.talking, came_s, busy_until_s))
        if len(arrivals) < members:
            return False
        del self._arrivals[background, name, count]
        self._check_alike(arrivals, meet)
        self._carry(arrivals, meet.kind, [(background, name)])
        return True

    def _check_alike(self, arrivals: Sequence[_Arrival], meet: Meet) -> None:
        for other in arrivals:
            if isinstance(other.what, Meet) and other.what.kind != meet.kind:
                raise ValueError(
                    f'Members of a team "{meet.team}" must begin its collectives in the same '
                    f"order: {self._called(other.worker)} begins {_label(other.what)} where "
                    f"{self._called(arrivals[-1].worker)} begins {_label(meet)}."
                )

    def _post(
        self,
        worker: int,
        mail: Mail,
        clock: Clock,
        busy_until_s: Numbers | None,
        *,
        step: int,
        background: bool,
    ) -> None:
        """A worker begins its side of a message, which is under way when the other has too."""
        role, message = self._roles[worker], mail.message
        lane = lane_of(
            message, background=background, node_kind=role.node_kind, index=role.index, step=step
        )
        came_s = self._later_of_two_s(worker, message, clock)
        arrival = _Arrival(worker, message, mail.talking, came_s, busy_until_s)
        together = self._mailbox.post(lane, arrival, is_sent=message.is_sent)
        if together:
            self._carry_mail(together, lane)

    def _carry_mail(self, arrivals: Sequence[_Arrival], lane: Lane) -> None:
        """What one worker sends goes in order, and so does what one receives."""
        is_inside = lane.step is None
        ends = {True: ("out of", lane.source), False: ("into", lane.target)}
        lines = [
            (lane.background, is_inside, lane.node_kind, *ends[arrival.what.is_sent])
            for arrival in arrivals
            if isinstance(arrival.what, Message)
        ]
        self._carry(arrivals, "point_to_point", lines)

    def _carry(
        self,
        arrivals: Sequence[_Arrival],
        kind: CollectiveKind,
        lines: Sequence[tuple[object, ...]],
    ) -> None:
        """All are there: it begins when the lines that it takes are free, and ends for all."""
        start_s: Numbers = 0.0
        for line in lines:
            start_s = np.maximum(start_s, self._free_s[line])
        for arrival in arrivals:
            start_s = np.maximum(start_s, arrival.came_s)
        alone_s = self._alone_s(arrivals, kind)
        factor: Numbers = 1.0
        end_s = start_s + alone_s
        rules = self._roles[arrivals[-1].worker].rules
        if rules.busy_factor:
            beside_s = _busy_until_s(arrivals, start_s) - start_s
            factor = slowed(alone_s, rules.busy_factor[_place(arrivals[0].what)], beside_s)
            end_s = start_s + alone_s * factor
        for line in lines:
            self._free_s[line] = end_s
        for arrival in arrivals:
            self._begin_and_end(arrival, start_s, end_s, factor)

    def _alone_s(self, arrivals: Sequence[_Arrival], kind: CollectiveKind) -> Numbers:
        """Seconds of what the workers have come to, by itself: the slowest node's.

        Gloo carries two messages one after the other whose workers both send before they receive
        (Team.keeps_order). A card that workers share is used by others meanwhile, so it takes no
        longer then.
        """
        num_bytes = max(arrival.what.num_bytes for arrival in arrivals)
        place = _place(arrivals[0].what)
        costs = {
            (role.node_kind, arrival.talking): role.rules.collective
            for arrival in arrivals
            for role in (self._roles[arrival.worker],)
        }
        alone_s: Numbers = 0.0
        for (_, talking), cost in costs.items():
            alone_s = np.maximum(alone_s, cost(place, kind, num_bytes, talking))
        rules = self._roles[arrivals[0].worker].rules
        if rules.serial and any(_is_behind(arrival.what) for arrival in arrivals):
            alone_s = np.maximum(alone_s, 2 * rules.collective(place, kind, num_bytes, 0.0))
        return alone_s

    def _begin_and_end(
        self, arrival: _Arrival, start_s: Numbers, end_s: Numbers, factor: Numbers
    ) -> None:
        worker, what = arrival.worker, arrival.what
        self._over[worker, what.ticket] = _Over(end_s, _place(what))
        share = self._roles[worker].rules.interference.get(_place(what), 0.0)
        if np.any(share):
            # What is slowed down takes as much from computing, over a longer time.
            self._under_way[worker].append((start_s, end_s, share / factor))
        if self._spans is not None:
            self._note(worker, what.team, _label(what), start_s, end_s)

    def _team(self, worker: int, team: TeamName) -> tuple[int, str]:
        """How many roles are members, and the team's name."""
        own = self._roles[worker]
        if team == "world":
            return len(self._roles), "world"
        if team == "node":
            count = sum(role.node_kind == own.node_kind for role in self._roles)
            return count, f"node {own.node_kind}"
        count = sum(role.index == own.index for role in self._roles)
        return count, f"across {own.index}"

    def _slowest_s(self, worker: int, team: TeamName, clock: Clock) -> Numbers:
        """When the slowest comes of all the workers that this role stands for in a team."""
        rules = self._roles[worker].rules
        if not rules.jitter:
            return clock.ready_s
        in_node, variance = slowest_of(rules.workers)
        of_nodes, _ = slowest_of(rules.nodes)
        own_s = np.sqrt(clock.variance)
        if team == "node":
            return clock.ready_s + own_s * in_node
        if team == "across":
            return clock.ready_s + np.hypot(own_s, np.sqrt(clock.node_variance)) * of_nodes
        node_s = np.sqrt(clock.node_variance + clock.variance * variance)
        return clock.ready_s + own_s * in_node + node_s * of_nodes

    def _later_of_two_s(self, worker: int, message: Message, clock: Clock) -> Numbers:
        """When the later one comes of the two workers of a message, who vary by as much."""
        if not self._roles[worker].rules.jitter:
            return clock.ready_s
        variance = clock.variance + (clock.node_variance if message.is_outward else 0.0)
        return clock.ready_s + np.sqrt(variance) * slowest_of(2)[0]

    def _note(self, worker: int, track: str, name: str, start_s: Numbers, end_s: Numbers) -> None:
        if self._spans is not None and end_s > start_s:
            self._spans.append(Span(worker, track, name, float(start_s), float(end_s)))
