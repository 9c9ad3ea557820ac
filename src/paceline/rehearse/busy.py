"""Communication beside computing, where both need the same cores: how much longer it takes."""

from __future__ import annotations

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.program import Mail, Meet, Program, Work
from paceline.teams.virtual import Await, Beside


def slowed(alone_s: Numbers, factor: Numbers, beside_s: Numbers) -> Numbers:
    """How many times as long a collective takes whose members compute for ``beside_s`` meanwhile.

    By itself it takes c, and f·c while they compute. If they do so for another w, the share w/(f·c)
    of it is done by then, and the rest takes c times the other share: c + w·(1 - 1/f) in all.
    """
    alone_s = np.maximum(alone_s, 1e-12)
    return 1 + np.minimum(beside_s, factor * alone_s) * (1 - 1 / factor) / alone_s


def work_beside(program: Program) -> dict[int, Numbers]:
    """By ticket: seconds of work that a worker does before it waits for what it has begun."""
    under_way: dict[int, Numbers] = {}
    done: dict[int, Numbers] = {}
    for step in program:
        for operation in step:
            if isinstance(operation, Meet | Mail | Beside):
                under_way[operation.ticket] = 0.0
            elif isinstance(operation, Work):
                for ticket in under_way:
                    under_way[ticket] = under_way[ticket] + operation.host_s + operation.device_s
            elif isinstance(operation, Await) and operation.ticket in under_way:
                done[operation.ticket] = under_way.pop(operation.ticket)
    return done | under_way
