"""Small programs, and what it takes to play them: times that can be said by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.layout import make_layout
from paceline.rehearse.play import play_roles
from paceline.rehearse.price import price_layout
from paceline.rehearse.program import CollectiveCost, NodeRules, Program, Role
from paceline.rehearse.record_worker import WorkerRecording
from paceline.rehearse.step_prices import StepPrices
from paceline.rehearse.timeline import Played
from paceline.steps import Call
from paceline.teams.journal import Collective

ALL_REDUCE_S = 10.0


def collective_of(workers: int) -> CollectiveCost:
    """What collectives cost if a node's workers share its card."""

    def cost(team: str, kind: str, num_bytes: int, card_share: float) -> Numbers:
        return ALL_REDUCE_S * num_bytes * (max(1, workers * card_share) if team == "across" else 1)

    return cost


def program(*steps: list[Any]) -> WorkerRecording:
    return WorkerRecording(
        steps=tuple(tuple(events) for events in steps),
        phases=("all",) * len(steps),
        extra_bytes=0,
    )


def call(op: str) -> Call:
    return Call(op, "optimizer", (), 0, 1)


def world(ticket: int, num_bytes: int = 1) -> Collective:
    return Collective(ticket, "world", "all_reduce", num_bytes)


def priced(
    recordings: list[WorkerRecording],
    *,
    host_s: Any = (),
    device_s: Any = (),
    serial: bool = True,
    **calls: float,
) -> list[Program]:
    prices = StepPrices(
        host_s=np.array(host_s, dtype=float),
        device_s=np.array(device_s, dtype=float),
        calls=lambda run: (np.zeros(len(run)), np.array([calls[call.op] for call in run])),
        serial=serial,
    )
    return price_layout(make_layout(recordings, ["forward"] + ["backward"] * 39), prices)


def play_node(recordings: list[WorkerRecording], *, serial: bool = True, **given: Any) -> Played:
    """One node's workers, all of them played."""
    names = ("interference", "busy_factor", "jitter")
    rules = {key: given.pop(key) for key in names if key in given}
    programs = priced(recordings, serial=serial, **given)
    cost = collective_of(len(programs))
    own = NodeRules(workers=len(programs), serial=serial, collective=cost, **rules)
    return play_roles([Role(program=p, rules=own, index=i) for i, p in enumerate(programs)])
