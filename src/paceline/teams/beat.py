"""A sign of life: what one worker tells the others, again and again, through the job's store."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from paceline.teams.host import is_alive, process_table, start_time
from paceline.teams.watch import Begun, Call


@dataclass(frozen=True, kw_only=True)
class Member:
    """One worker of the job, for good."""

    rank: int
    node: str
    table: str
    pid: int
    started: float
    ahead_s: float = 0.0
    """How far its clock is ahead of this worker's."""

    @classmethod
    def own(cls, rank: int) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(rank=rank, node="", table=process_table(), pid=pid, started=start_time(pid))

    def __str__(self) -> str:
        return f"worker {self.rank} on {self.node}"

    def has_died(self) -> bool:
        """Whether its process is known to have ended: another machine's is not."""
        return self.table == process_table() and not is_alive(self.pid, self.started)


class Wait(NamedTuple):
    """What one thread of a worker waits in, and for how long it has."""

    call: Call
    for_s: float
    is_background: bool


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a worker does at a moment."""

    time_s: float
    """By its own clock."""
    step: int
    since_step_s: float
    counts: dict[str, int]
    waits: tuple[Wait, ...]
    begun: dict[str, tuple[Begun, ...]] = field(default_factory=dict)
    """By team: what it has begun last, told by those who have waited for long."""
    is_background_busy: bool = False
    is_over: bool = False
    """Whether it said goodbye."""

    def encode(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From the store."""
        fields: dict[str, Any] = json.loads(data)
        waits = (Wait(Call(*call), *rest) for call, *rest in fields.pop("waits"))
        begun = fields.pop("begun").items()
        return cls(
            waits=tuple(waits),
            begun={team: tuple(Begun(*each) for each in calls) for team, calls in begun},
            **fields,
        )

    @property
    def front_waits(self) -> list[Wait]:
        """What the training itself waits in."""
        return [wait for wait in self.waits if not wait.is_background]

    def at(self) -> str:
        """How far it has come."""
        return f"at step {self.step + 1}"

    def describe(self, age_s: float) -> str:
        """What it does instead of coming, as far as this tells."""
        if self.is_over:
            return f"which has detached after step {self.step}"
        if not self.waits:
            return f"which computes {self.at()}, for {self.since_step_s + age_s:.0f} s now"
        wait = max(self.waits, key=lambda wait: wait.for_s)
        return f"which waits in {wait.call} {self.at()}, for {wait.for_s + age_s:.0f} s now"


def name_all(ranks: Sequence[int], members: Sequence[Member]) -> str:
    """Some workers and their nodes, in few words."""
    if len(ranks) == 1:
        return str(members[ranks[0]])
    nodes = list(dict.fromkeys(members[rank].node for rank in ranks))
    return f"workers {join_names([str(rank) for rank in ranks])} on {join_names(nodes)}"


def join_names(names: list[str], *, most: int = 5) -> str:
    """``a``, ``a and b``, ``a, b and c``; the first few of many."""
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
