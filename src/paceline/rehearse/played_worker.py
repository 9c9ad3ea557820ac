"""One worker in a play: its work, its waits, and what slows it down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.contention import Span, end_of_work_s, work_meanwhile
from paceline.rehearse.jitter import forget_lead
from paceline.rehearse.program import NodeRules, Role, Work
from paceline.rehearse.sharing import Sharing
from paceline.rehearse.spans import SpanLog
from paceline.rehearse.worker_clock import WorkerClock
from paceline.teams.journal import TeamName


@dataclass(frozen=True, slots=True)
class Over:
    """A communication, or background work, that has an end."""

    at_s: Numbers
    team: TeamName
    agreed: float = 0.0
    """The number that its members agreed on, if they did."""


class PlayedWorker:
    """A worker that is played, for itself or for all that do the same."""

    def __init__(self, number: int, role: Role, log: SpanLog, sharing: Sharing) -> None:
        self.number = number
        self.role = role
        self.rules = role.rules
        self.ends_s: list[Numbers] = []
        """Of each step."""
        self.background_s: Numbers = 0.0
        """When what was asked for in the background is over."""
        self.readings: dict[int, float] = {}
        """What the program read of the clock and heard from teams, by place."""
        self.under_way: tuple[Span, ...] = ()
        """Communication that takes speed from what it computes."""
        self._work_meanwhile = work_meanwhile(role.program) if self.rules.busy_factor else {}
        self._log = log
        self._sharing = sharing

    def note(self, track: str, name: str, start_s: Numbers, end_s: Numbers) -> None:
        """Note what the worker did from one moment to another."""
        self._log.note(self.number, track, name, start_s, end_s)

    def all_readings(self) -> tuple[float, ...]:
        """By place; what was read before the first step was read at 0."""
        num_readings = max(self.readings, default=-1) + 1
        return tuple(self.readings.get(place, 0.0) for place in range(num_readings))

    def busy_until_s(self, ticket: int, clock: WorkerClock) -> Numbers | None:
        """When it is through with what it computes before it waits for what it begins now.

        None where that does not matter.
        """
        if not self.rules.busy_factor:
            return None
        return clock.ready_s + self._work_meanwhile[ticket]

    def work(self, work: Work, clock: WorkerClock, *, background: bool) -> None:
        """Compute a stretch of calls."""
        begin_s, end_s, self.under_way = self._sharing.advance(
            clock, _work, self.rules, work, background, *self.under_way
        )
        if not background:
            # With what communication beside it costs, as in a measured trace.
            self.note("compute", work.name, begin_s, end_s)

    def wait(self, over: Over, clock: WorkerClock, *, background: bool) -> None:
        """Wait until something is over.

        Background work is a thread that waits; the main program's device does.
        """
        before_s = clock.ready_s if self._log.is_wanted else 0.0
        self._sharing.advance(clock, _wait, self.rules, over.at_s, over.team, background)
        clock.share(self._sharing.same)
        if not background:
            self.note("compute", "wait", before_s, clock.ready_s)


def _work(
    clock: WorkerClock, rules: NodeRules, work: Work, background: bool, *under_way: Span
) -> tuple[Numbers, Numbers, tuple[Span, ...]]:
    """When work begins and ends, and what is under way from then on."""
    if rules.serial:
        busy_s = work.host_s + work.device_s
        end_s = clock.host_s + busy_s
    else:
        busy_s = work.device_s
        end_s = np.maximum(clock.device_s + busy_s, clock.host_s + work.lag_s)
    begin_s = end_s - busy_s
    if background:
        # It shares the device with the main program: both get half of it.
        end_s = end_s + busy_s
        under_way = (*under_way, (end_s - 2 * busy_s, end_s, 0.5))
    else:
        end_s, under_way = end_of_work_s(begin_s, busy_s, under_way)
        if rules.jitter:
            clock.step_deviation = clock.step_deviation + rules.jitter * busy_s
        if rules.node_jitter:
            clock.node_step_deviation = clock.node_step_deviation + rules.node_jitter * busy_s
    clock.host_s = end_s if rules.serial else clock.host_s + work.host_s
    clock.device_s = end_s
    return begin_s, end_s, under_way


def _wait(
    clock: WorkerClock, rules: NodeRules, until_s: Numbers, team: TeamName, background: bool
) -> None:
    before_s = clock.ready_s
    clock.hold(until_s, host=rules.serial or background)
    if rules.jitter or rules.node_jitter:
        forget_lead(rules, team, clock, until_s > before_s)
