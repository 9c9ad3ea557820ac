"""Programs: what each worker does, with a price for everything, ready to be played.

Between two moments of communication a worker only computes. Such a stretch, however many calls it
has, is three numbers (:class:`Work`), so playing a step takes a few operations per collective and
not per kernel. The numbers may be arrays: one program is then many, on many devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from paceline.cluster.collective import CollectiveKind
from paceline.collectives import Numbers
from paceline.rehearse.layout import Read
from paceline.rehearse.record import Recording
from paceline.rehearse.slowest import slowest_of
from paceline.teams.journal import (
    BackgroundWork,
    Collective,
    Pause,
    Poll,
    Reading,
    TeamName,
    Transfer,
    Wait,
)

CollectiveCost: TypeAlias = Callable[[TeamName, CollectiveKind, int, float], Numbers]
"""Seconds of a collective: team, kind, bytes, which share of the node's workers do one at once."""


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of calls.

    The host issues it in ``host_s``; the device works for ``device_s``; if the device was idle when
    the host began, it is through ``lag_s`` after that.
    """

    name: str
    host_s: Numbers
    device_s: Numbers
    lag_s: Numbers


@dataclass(frozen=True, slots=True)
class Communication:
    """A collective or a transfer begins."""

    what: Collective | Transfer
    card_share: float
    """The share of the node's workers that communicate with other nodes at that time."""

    @property
    def ticket(self) -> int:
        """What its end is waited for by."""
        return self.what.ticket

    @property
    def links(self) -> TeamName:
        """Whose links it takes, and who waits with whom: a transfer has two workers, in or out."""
        if isinstance(self.what, Collective):
            return self.what.team
        return "across" if self.what.is_outward else "node"


Operation: TypeAlias = Work | Read | Communication | Wait | Poll | BackgroundWork | Pause | Reading
Program: TypeAlias = tuple[tuple[Operation, ...], ...]
"""Operations, step by step; background work holds operations of its own."""


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
    node_jitter: float = 0.0
    """How much a node's time varies against the others, beside that."""

    @cached_property
    def slowest_worker(self) -> tuple[Numbers, Numbers]:
        """How late the slowest worker of a node is, as :func:`slowest_of` says it."""
        return slowest_of(self.workers)

    @cached_property
    def slowest_node(self) -> tuple[Numbers, Numbers]:
        """How late the slowest node is."""
        return slowest_of(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Role:
    """A worker that is played, for itself or for all that do the same."""

    program: Program
    rules: NodeRules
    node_kind: int = 0
    node_size: int = 1
    """The number of workers of its node, as it was recorded."""
    index: int = 0
    """The worker's place in its node."""
    num_alike: int = 1
    """How many workers of its node it is played for."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What is played together: the workers that differ, of every kind of node."""

    roles: tuple[Role, ...]
    recording: Recording
    """Where the programs come from."""
