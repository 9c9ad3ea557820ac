"""What nodes do together although each of them may be lost: one thing after another.

Every node has the same list of things to do together: exchanges, and collectives of all workers.
Before each, the lighthouse tells who takes part. If one of them is lost meanwhile, those that are
left do the same thing again without it. A node that comes back, or was too late, has done fewer
things than the others; it takes over their state and goes on from there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from paceline.teams.live_groups import LiveGroups
from paceline.teams.meeting import Guest, MeetingPoint, Presence, Quorum
from paceline.teams.monitor import Monitor
from paceline.teams.team import Team, TeamError

FORM, RETURN, ADMIT = "form", "return", "admit"
_SIZES = "paceline/sizes"
_MOST_FAILURES = 5


class LeftBehindError(TeamError):
    """The other nodes have gone on without this one, which must take over their state."""


class Crossing:
    """One worker's part in what the nodes do together. All workers of a node call alike.

    Args:
        point: Where the nodes meet.
        presence: The node's signs of life; only its first worker has it.
        node_team: The workers of this node, for this purpose alone.
        own: This node as it introduces itself.
        names: What to call the nodes.

    """

    def __init__(
        self,
        point: MeetingPoint,
        presence: Presence | None,
        node_team: Team,
        *,
        own: Guest,
        names: list[str],
    ) -> None:
        self._point = point
        self._presence = presence
        self._node_team = node_team
        self._own = own
        self._sizes: list[int] = []
        self._source = 0
        self._names = names
        self._settings = point.settings
        self._groups: LiveGroups | None = None
        self._monitor = Monitor(point)
        self._present: frozenset[int] = frozenset([own.node])
        self._failure = ""
        self.is_new = True
        """Whether this node has never done anything with the others."""
        self.is_alone = True
        """Whether this node has not been let in yet, or has been left behind."""
        self.newcomers: tuple[int, ...] = ()
        """Nodes that wait to be let in, as the last quorum told."""

    @property
    def groups(self) -> LiveGroups:
        """The connections among the nodes that are there."""
        assert self._groups is not None
        return self._groups

    @property
    def round(self) -> int:
        """How many things this node has done together with others."""
        return self._own.round

    @property
    def present(self) -> frozenset[int]:
        """The nodes that took part in what was done last."""
        return self._present

    @property
    def source(self) -> int:
        """The place of the worker whose state newcomers take over."""
        return self._source

    def begin(self) -> list[int]:
        """Wait for all nodes, or find that they train already and stay alone for now.

        Returns:
            How many workers each node has.

        """
        begun_s = time.monotonic()
        while True:
            quorum = self._ask(FORM)
            if any(guest.round > 0 for guest in quorum.guests):
                self._learn_sizes()
                return self._sizes
            nodes = [guest.node for guest in quorum.guests]
            if len(nodes) == self._settings.num_nodes:
                self._sizes = [guest.num_workers for guest in quorum.guests]
                if self._try(quorum, quorum.guests, self._tell_sizes):
                    self._have_done(quorum.guests)
                    return self._sizes
            missing = sorted(set(range(self._settings.num_nodes)) - set(nodes))
            if time.monotonic() - begun_s > self._settings.timeout_s:
                raise TeamError(
                    f"timed out after {self._settings.timeout_s:g} s; not there: "
                    f"{', '.join(f'node {node}' for node in missing)}"
                )
            time.sleep(0.2)

    def _tell_sizes(self) -> None:
        if self._presence is not None:
            self._presence.tell(_SIZES, json.dumps(self._sizes))

    def _learn_sizes(self) -> None:
        self._sizes = json.loads(self._point.store().get(_SIZES))
        if self._presence is not None:
            self._presence.tell(_SIZES, json.dumps(self._sizes))
        before, now = self._sizes[self._own.node], self._own.num_workers
        if before != now:
            raise ValueError(
                f"node {self._own.node} began with {before} workers and comes back with {now}; "
                "start it with as many as before"
            )

    def run(self, work: Callable[[], None], *, kind: str) -> None:
        """Do something together with all nodes that are there; again, if one is lost meanwhile.

        Args:
            work: Communicates through :attr:`groups`; must give the same when it is done again.
            kind: What it is, the same on all nodes.

        """
        if self.is_alone:
            raise self._left_behind(kind)
        for _ in range(_MOST_FAILURES * self._settings.num_nodes):
            quorum = self._ask(kind)
            latest = max(guest.round for guest in quorum.guests)
            members = tuple(guest for guest in quorum.guests if guest.round == latest)
            if self._own.round < latest:
                self._lose_all()
                raise self._left_behind(kind)
            self._check_kinds(members)
            guests = quorum.guests if kind == ADMIT else members
            self.newcomers = tuple(g.node for g in quorum.guests if g.round < latest)
            if self._try(quorum, guests, work):
                if kind == ADMIT:
                    self.newcomers = ()
                self._have_done(guests)
                return
        raise TeamError(f"{self._self}: {kind} failed again and again; {self._failure}")

    def come_back(self, work: Callable[[], None]) -> None:
        """Wait until the others let this node in, and do what they do then.

        Args:
            work: Takes over their state, through :attr:`groups`.

        """
        self._lose_all()
        self._own = replace(self._own, round=0)
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self._settings.timeout_s:
            quorum = self._ask(RETURN)
            latest = max(quorum.guests, key=lambda guest: guest.round)
            if latest.kind != ADMIT:
                if latest.round == 0:
                    time.sleep(0.2)  # others that wait, too
                continue
            if self._try(quorum, quorum.guests, work):
                self._own = replace(self._own, round=latest.round)
                self._have_done(quorum.guests)
                return
        raise TeamError(
            f"{self._self} was not let in by the other nodes within {self._settings.timeout_s:g} s"
        )

    def close(self) -> None:
        """Give back connections and threads."""
        self._lose_all()
        self._monitor.close()
        if self._presence is not None:
            self._presence.close()

    @property
    def _self(self) -> str:
        return self._names[self._own.node]

    def _left_behind(self, kind: str) -> LeftBehindError:
        return LeftBehindError(
            f"{self._self}: {kind} failed: the other nodes have gone on without this one"
        )

    def _ask(self, kind: str) -> Quorum:
        """Ask the lighthouse; one worker of the node does, and tells the others."""
        answer = b""
        if self._presence is not None:
            own = replace(
                self._own, kind=kind, groups="" if self._groups is None else self._groups.name
            )
            try:
                answer = self._presence.ask(own=own, timeout_s=self._settings.timeout_s).encode()
            except TimeoutError:
                answer = b""
        answer = self._node_team.gather(answer)[0]
        if not answer:
            raise TeamError(
                f"{self._self}: {kind} failed: no answer from the meeting {self._point.address} "
                f"within {self._settings.timeout_s:g} s; its machine or this node's link is down, "
                "or another node lives and does not come"
            )
        quorum = Quorum.decode(answer)
        # Of a node that died and was started again, the earlier life may not have been missed yet.
        latest: dict[int, Guest] = {}
        for guest in sorted(quorum.guests, key=lambda guest: guest.born_s):
            latest[guest.node] = guest
        if latest[self._own.node].replica != self._own.replica:
            raise TeamError(
                f"another node on {latest[self._own.node].host} says that it is node "
                f"{self._own.node}, too; give each node a number of its own"
            )
        quorum = Quorum(name=quorum.name, guests=tuple(latest[node] for node in sorted(latest)))
        for guest in quorum.guests:
            self._names[guest.node] = f"node {guest.node} ({guest.host})"
        return quorum

    def _check_kinds(self, members: Sequence[Guest]) -> None:
        odd = next((guest for guest in members if guest.kind != members[0].kind), None)
        if odd is not None:
            raise TeamError(
                f"the nodes' programs have drifted apart: {self._names[odd.node]} begins "
                f"{odd.kind} where {self._names[members[0].node]} begins {members[0].kind}"
            )

    def _try(self, quorum: Quorum, guests: Sequence[Guest], work: Callable[[], None]) -> bool:
        """Do something with some nodes; whether it was done, on all workers of this node."""
        is_done = False
        name = quorum.name
        leading = max(guests, key=lambda guest: (guest.round, -guest.node))
        self._source = self._first_places()[leading.node]
        self._monitor.begin(name, [guest.replica for guest in guests])
        try:
            self._regroup(quorum, guests)
            work()
            self._vote()
            is_done = True
        except TeamError as error:
            self._failure = str(error).partition("\n")[0]
            self._monitor.tell_failure(name)
            self._drop_groups()
        finally:
            self._monitor.end()
        if self._node_team.agree(float(is_done), "min") < 1.0:
            self._drop_groups()
            return False
        return True

    def _vote(self) -> None:
        """Nobody goes on before all have done their part, as far as that can be known."""
        self.groups.world.all_reduce(torch.ones(1), "min")

    def _regroup(self, quorum: Quorum, guests: Sequence[Guest]) -> None:
        replicas = tuple(guest.replica for guest in guests)
        names = {guest.groups for guest in guests}
        groups = self._groups
        if groups is not None and replicas == groups.replicas and names == {groups.name}:
            self._monitor.guard(groups)
            return
        self._drop_groups()
        self._groups = LiveGroups(
            self._point.store(),
            name=quorum.name,
            store_port=self._point.port,
            guests=guests,
            first_places=self._first_places(),
            node=self._own.node,
            local_rank=self._node_team.rank,
            # A node that was there a moment ago may be gone: not for long.
            form_s=2 * self._settings.silence_s,
            timeout_s=self._settings.timeout_s,
        )
        self._monitor.guard(self._groups)

    def _first_places(self) -> list[int]:
        return list(accumulate(self._sizes[:-1], initial=0))

    def _drop_groups(self) -> None:
        self._monitor.guard(None)
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    def _lose_all(self) -> None:
        self._drop_groups()
        self.is_alone = True

    def _have_done(self, guests: Sequence[Guest]) -> None:
        self._own = replace(self._own, round=self._own.round + 1)
        before, self._present = self._present, frozenset(guest.node for guest in guests)
        was_alone, self.is_alone, self.is_new = self.is_alone, False, False
        if self._node_team.rank != 0 or before == self._present:
            return
        if was_alone:
            text = f"{self._self} trains with {_names(self._present - {self._own.node})}"
        else:
            lost, found = before - self._present, self._present - before
            changes = [f"lost {_names(lost)}"] if lost else []
            changes += [f"taken {_names(found)} back"] if found else []
            left = f"{len(self._present)} of {self._settings.num_nodes} nodes go on"
            text = f"{self._self} has {' and '.join(changes)}; {left}"
        print(f"paceline: {text}", file=sys.stderr, flush=True)


def _names(nodes: frozenset[int]) -> str:
    if not nodes:
        return "no other node"
    numbers = [str(node) for node in sorted(nodes)]
    return f"node{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
