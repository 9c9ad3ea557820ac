"""Communication and computing at the same time: how much longer each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.program import Communication, Program, Work
from paceline.teams.journal import BackgroundWork, Wait


def slowed(alone_s: Numbers, factor: Numbers, computing_s: Numbers) -> Numbers:
    """How many times as long a collective takes if its members compute for so long meanwhile.

    By itself it takes c, and f·c while they compute. If they do so for another w, the share w/(f·c)
    of it is done by then, and the rest takes c times the other share: c + w·(1 - 1/f) in all.
    """
    alone_s = np.maximum(alone_s, 1e-12)
    return 1 + np.minimum(computing_s, factor * alone_s) * (1 - 1 / factor) / alone_s


def work_meanwhile(program: Program) -> dict[int, Numbers]:
    """By ticket: seconds of work that a worker does before it waits for what it has begun."""
    under_way: dict[int, Numbers] = {}
    done: dict[int, Numbers] = {}
    for step in program:
        for operation in step:
            if isinstance(operation, Communication | BackgroundWork):
                under_way[operation.ticket] = 0.0
            elif isinstance(operation, Work):
                for ticket in under_way:
                    under_way[ticket] = under_way[ticket] + operation.host_s + operation.device_s
            elif isinstance(operation, Wait) and operation.ticket in under_way:
                done[operation.ticket] = under_way.pop(operation.ticket)
    return done | under_way


Span: TypeAlias = tuple[Numbers, Numbers, Numbers]
"""From one moment to another, computing loses a share of its speed."""


def end_of_work_s(
    begin_s: Numbers, busy_s: Numbers, spans: Sequence[Span]
) -> tuple[Numbers, tuple[Span, ...]]:
    """When work ends that would take ``busy_s`` by itself, and the spans that last longer."""
    end_s = begin_s + busy_s
    for start_s, over_s, share in spans:
        both_begin_s = np.maximum(begin_s, start_s)
        left_s = np.maximum(end_s - both_begin_s, 0.0)
        together_s = np.maximum(over_s - both_begin_s, 0.0)
        end_s = end_s + np.minimum(left_s * share / (1 - share), together_s * share)
    return end_s, tuple(each for each in spans if np.any(each[1] > end_s))
