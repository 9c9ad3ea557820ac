"""Links: when a collective or a transfer begins whose workers are all there, and when it ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paceline.cluster.collective import CollectiveKind
from paceline.collectives import Numbers
from paceline.rehearse.contention import Span, slowed
from paceline.rehearse.played_worker import Over, PlayedWorker
from paceline.rehearse.program import Communication
from paceline.rehearse.spans import label
from paceline.teams.journal import Collective, Transfer

Key: TypeAlias = tuple[int, int]
"""A worker's number, and a ticket."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker that has come to a collective, or to a transfer."""

    worker: PlayedWorker
    communication: Communication
    came_s: Numbers
    busy_until_s: Numbers | None
    """When it is through with what it computes before it needs the result, if that matters."""


class Links:
    """What carries the communication of all workers."""

    def __init__(self) -> None:
        self.over: dict[Key, Over] = {}
        """What has an end by now."""
        self._free_s: dict[tuple[object, ...], Numbers] = defaultdict(float)

    def carry(
        self,
        arrivals: Sequence[Arrival],
        kind: CollectiveKind,
        lines: Sequence[tuple[object, ...]],
    ) -> None:
        """All are there: it begins when the lines that it takes are free, and ends for all."""
        start_s: Numbers = 0.0
        for line in lines:
            start_s = np.maximum(start_s, self._free_s[line])
        for came_s in {id(arrival.came_s): arrival.came_s for arrival in arrivals}.values():
            start_s = np.maximum(start_s, came_s)
        alone_s = _alone_s(arrivals, kind)
        factor: Numbers = 1.0
        end_s = start_s + alone_s
        rules = arrivals[-1].worker.rules
        if rules.busy_factor:
            computing_s = _busy_until_s(arrivals, start_s) - start_s
            links = arrivals[0].communication.links
            factor = slowed(alone_s, rules.busy_factor[links], computing_s)
            end_s = start_s + alone_s * factor
        for line in lines:
            self._free_s[line] = end_s
        agreed = _agreed(arrivals)
        spans: dict[int, Span] = {}  # one for all that take it alike
        for arrival in arrivals:
            worker, what = arrival.worker, arrival.communication
            self.over[worker.number, what.ticket] = Over(end_s, what.links, agreed)
            share = worker.rules.interference.get(what.links, 0.0)
            if share if isinstance(share, float) else np.any(share):
                # What is slowed down takes as much from computing, over a longer time.
                span = (start_s, end_s, share / factor)
                worker.under_way += (spans.setdefault(id(worker.rules), span),)
            worker.note(what.what.team, label(what.what), start_s, end_s)


def _alone_s(arrivals: Sequence[Arrival], kind: CollectiveKind) -> Numbers:
    """Seconds of what the workers have come to, by itself: the slowest node's.

    Gloo carries two transfers one after the other whose workers both send before they receive
    (Team.keeps_order). A card that workers share is used by others meanwhile, so it takes no
    longer then.
    """
    num_bytes = max(arrival.communication.what.num_bytes for arrival in arrivals)
    links = arrivals[0].communication.links
    costs = {
        (
            arrival.worker.role.node_kind,
            arrival.communication.card_share,
        ): arrival.worker.rules.collective
        for arrival in arrivals
    }
    alone_s: Numbers = 0.0
    for (_, card_share), cost in costs.items():
        alone_s = np.maximum(alone_s, cost(links, kind, num_bytes, card_share))
    rules = arrivals[0].worker.rules
    if rules.serial and any(_is_behind(arrival.communication) for arrival in arrivals):
        alone_s = np.maximum(alone_s, 2 * rules.collective(links, kind, num_bytes, 0.0))
    return alone_s


def _is_behind(communication: Communication) -> bool:
    return isinstance(communication.what, Transfer) and communication.what.is_behind


def _busy_until_s(arrivals: Sequence[Arrival], start_s: Numbers) -> Numbers:
    """When the last member is through with what it computes beside a collective."""
    until_s = start_s
    for arrival in arrivals:
        if arrival.busy_until_s is not None:
            until_s = np.maximum(until_s, arrival.busy_until_s)
    return until_s


def _agreed(arrivals: Sequence[Arrival]) -> float:
    """What the members' numbers come to, each as often as there are workers that say it."""
    said = [
        (
            arrival.communication.what,
            float(np.max(arrival.worker.rules.nodes)) * arrival.worker.role.num_alike,
        )
        for arrival in arrivals
        if isinstance(arrival.communication.what, Collective)
    ]
    numbers = [(each.number, count) for each, count in said if each.number is not None]
    if not numbers:
        return 0.0
    if said[0][0].op == "mean":
        return sum(number * count for number, count in numbers) / sum(n for _, n in numbers)
    values = [number for number, _ in numbers]
    return max(values) if said[0][0].op == "max" else min(values)
