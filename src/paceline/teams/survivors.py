"""The workers of a job whose nodes may be lost and come back."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist

from paceline.teams.background import Background
from paceline.teams.crossing import ADMIT, Crossing
from paceline.teams.crossing_team import CrossingTeam, LiveTeam
from paceline.teams.launcher import find_place
from paceline.teams.live_groups import LiveGroup
from paceline.teams.meeting import Guest, MeetingPoint, Presence, find_meeting
from paceline.teams.team import Op, Pending, Team
from paceline.teams.workers import Workers, form_workers, initialise


class _Record:
    """One thing that this node does together with others, in their common order."""

    def __init__(self) -> None:
        self.newcomers: tuple[int, ...] = ()
        self.pending: Pending | None = None


class _Log:
    """The last two things that were begun, and how many there were."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        self.before: _Record | None = None
        self.last: _Record | None = None
        self.has_news = False

    def add(self, record: _Record) -> None:
        self.before, self.last, self.has_news = self.last, record, True


@dataclass(frozen=True, kw_only=True)
class SurvivingBackground(Background):
    """Background work whose talk with other nodes is done again when one of them is lost."""

    crossing: Crossing
    num_nodes: int
    log: _Log = field(default_factory=_Log, repr=False)

    def run(self, work: Callable[[], None], *, device: torch.device) -> Pending:
        """Run a function after all background work that was requested before it."""
        record = _Record()
        self.log.add(record)

        def recorded() -> None:
            self.crossing.newcomers = ()
            work()
            record.newcomers = self.crossing.newcomers

        record.pending = super().run(recorded, device=device)
        return record.pending

    def cross(self, work: Callable[[], None]) -> None:
        """Do what talks to other nodes, with those that are there."""
        self.crossing.run(work, kind="exchange")

    def run_crossing(self, work: Callable[[], None], kind: str, device: torch.device) -> Pending:
        """One thing to do with other nodes and nothing else."""
        return self.run(lambda: self.crossing.run(work, kind=kind), device=device)

    @property
    def absent(self) -> frozenset[int]:
        """The nodes that did not take part in the last crossing."""
        return frozenset(range(self.num_nodes)) - self.crossing.present


class Survivors:
    """How nodes that were lost come back: the training calls it between steps."""

    def __init__(self, crossing: Crossing, background: SurvivingBackground) -> None:
        self._crossing = crossing
        self._background = background

    @property
    def is_new(self) -> bool:
        """Whether the others train already, and this node has to be let in."""
        return self._crossing.is_new

    @property
    def world(self) -> LiveGroup:
        """All workers that are there; inside :meth:`admit` and :meth:`come_back`."""
        return self._crossing.groups.world

    @property
    def source(self) -> int:
        """The place of the worker whose state all take over, inside the same."""
        return self._crossing.source

    @property
    def present(self) -> frozenset[int]:
        """The nodes that took part in what was done last."""
        return self._crossing.present

    def is_somebody_waiting(self) -> bool:
        """Whether nodes wait to be let in: all nodes say the same, at the same step.

        What was begun last may still be under way, on some nodes and not on others; so what was
        begun before it decides.
        """
        log = self._background.log
        if not log.has_news or log.before is None:
            return False
        log.has_news = False
        assert log.before.pending is not None
        log.before.pending.wait()
        return bool(log.before.newcomers)

    def admit(self, work: Callable[[], None]) -> None:
        """Let in who waits; ``work`` gives them the state. All nodes call it."""
        self._background.run_crossing(work, ADMIT, torch.device("cpu")).wait()
        self._background.log.begin_anew()

    def come_back(self, work: Callable[[], None]) -> None:
        """Wait to be let in; ``work`` takes the state."""
        come = lambda: self._crossing.come_back(work)  # noqa: E731
        self._background.run(come, device=torch.device("cpu")).wait()
        self._background.log.begin_anew()

    def close(self) -> None:
        """Give no more signs of life."""
        self._crossing.close()


class _NodeGroup:
    """The workers of this node, in the form of a live group."""

    def __init__(self, node: Team, first_place: int) -> None:
        self._node = node
        self._first = first_place

    def all_reduce(self, tensor: torch.Tensor, op: Op) -> None:
        self._node.all_reduce(tensor, op).wait()

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        place = source - self._first
        self._node.broadcast(tensor, place if 0 <= place < self._node.size else 0).wait()


def find_surviving_workers(
    *, timeout_s: float | None = None, environment: Mapping[str, str] = os.environ
) -> Workers:
    """The workers of a job whose nodes may be lost: each node is started on its own.

    Args:
        timeout_s: How long the workers of a node wait for each other; by default somewhat longer
            than the nodes do, which the meeting says.
        environment: Where the launcher's variables are, and the meeting's.

    """
    address, node = find_meeting(environment)
    point = MeetingPoint(address)
    settings = point.settings
    if node >= settings.num_nodes:
        raise ValueError(
            f"PACELINE_NODE={node} is not one of the {settings.num_nodes} nodes that this meeting "
            "is for; they are numbered from 0"
        )
    # Longer than nodes wait for each other: what a node's first worker waits for, the others do.
    timeout_s = 1.5 * settings.timeout_s + 30.0 if timeout_s is None else timeout_s
    if not dist.is_initialized():
        initialise(find_place(environment), None, timeout_s, environment)
    num_local = dist.get_world_size()
    inner = form_workers(
        [range(num_local)], timeout_s=timeout_s, environment=environment, first_node=node
    )
    is_first = inner.node.rank == 0
    names = [f"node {i}" for i in range(settings.num_nodes)]
    own = Guest(
        replica=inner.node.gather(uuid.uuid4().hex.encode())[0].decode(),
        node=node,
        num_workers=num_local,
        host=socket.gethostname(),
        born_s=time.time(),
        round=0,
        kind="",
        groups="",
    )
    crossing = Crossing(
        point,
        Presence(point, own.replica) if is_first else None,
        inner.background.node,
        own=own,
        names=names,
    )
    try:
        sizes = crossing.begin()
    except BaseException:
        crossing.close()
        inner.close()
        raise
    firsts = list(accumulate(sizes[:-1], initial=0))
    ranks_by_node = tuple(
        tuple(range(first, first + size)) for first, size in zip(firsts, sizes, strict=True)
    )
    own_place = firsts[node] + inner.node.rank
    everybody = list(range(sum(sizes)))
    peers = [ranks[inner.node.rank] for ranks in ranks_by_node if len(ranks) > inner.node.rank]
    background = SurvivingBackground(
        node=inner.background.node,
        across=LiveTeam(crossing, peers, peers.index(own_place)),
        watch=inner.watch,
        crossing=crossing,
        num_nodes=settings.num_nodes,
        _executor=inner.background._executor,
    )

    def team(places: list[int], choose: Callable[[Crossing], LiveGroup]) -> CrossingTeam:
        return CrossingTeam(
            crossing,
            places,
            places.index(own_place),
            choose=choose,
            run=background.run_crossing,
            node=_NodeGroup(inner.node, firsts[node]),
        )

    return dataclasses.replace(
        inner,
        world=team(everybody, lambda crossing: crossing.groups.world),
        across=team(peers, lambda crossing: crossing.groups.across),
        background=background,
        ranks_by_node=ranks_by_node,
        node_names=tuple(names),
        survivors=Survivors(crossing, background),
    )
