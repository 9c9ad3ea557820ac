"""Meetings: a collective begins when the last member of its team arrives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.rehearse.links import Arrival, Links
from paceline.rehearse.played_worker import PlayedWorker
from paceline.rehearse.spans import label
from paceline.teams.journal import Collective, TeamName


class Meetings:
    """The collectives of all teams, in the order in which their members begin them."""

    def __init__(self, workers: Sequence[PlayedWorker], links: Links) -> None:
        self._workers = workers
        self._links = links
        self._arrivals: dict[tuple[bool, str, int], list[Arrival]] = defaultdict(list)
        self._teams: dict[tuple[int, TeamName], tuple[int, str]] = {}
        self._counts: dict[tuple[int, bool, TeamName], int] = defaultdict(int)

    def arrive(self, arrival: Arrival, collective: Collective, *, background: bool) -> bool:
        """A member comes to a collective; whether it was the last."""
        worker, team = arrival.worker, collective.team
        members, name = self._team(worker, team)
        count = self._counts[worker.number, background, team]
        self._counts[worker.number, background, team] = count + 1
        arrivals = self._arrivals[background, name, count]
        arrivals.append(arrival)
        if len(arrivals) < members:
            return False
        del self._arrivals[background, name, count]
        self._check_alike(arrivals, collective)
        self._links.carry(arrivals, collective.kind, [(background, name)])
        return True

    def who_is_missing(self) -> str:
        """Why nobody can go on: a collective that not all members of its team begin."""
        (_, name, _), (first, *others) = next(iter(self._arrivals.items()))
        team = first.communication.what.team
        came = {first.worker, *(arrival.worker for arrival in others)}
        missing = next(
            worker
            for worker in self._workers
            if worker not in came and self._team(worker, team)[1] == name
        )
        return (
            f"Workers would wait for ever: {self.title(first.worker)} begins a collective of its "
            f'team "{team}", and {self.title(missing)} never does. All members of a '
            "team must begin its collectives, in the same order."
        )

    def title(self, worker: PlayedWorker) -> str:
        """What messages call a worker."""
        several = len({each.role.node_kind for each in self._workers}) > 1
        kind = f"a node of kind {worker.role.node_kind}" if several else "a node"
        return f"worker {worker.role.index} of {kind}"

    def _check_alike(self, arrivals: Sequence[Arrival], collective: Collective) -> None:
        for other in arrivals:
            what = other.communication.what
            if isinstance(what, Collective) and what.kind != collective.kind:
                raise ValueError(
                    f'Members of a team "{collective.team}" must begin its collectives in the same '
                    f"order: {self.title(other.worker)} begins {label(what)} where "
                    f"{self.title(arrivals[-1].worker)} begins {label(collective)}."
                )

    def _team(self, worker: PlayedWorker, team: TeamName) -> tuple[int, str]:
        """How many roles are members, and the team's name."""
        key = (worker.number, team)
        if key not in self._teams:
            self._teams[key] = self._find_team(worker, team)
        return self._teams[key]

    def _find_team(self, worker: PlayedWorker, team: TeamName) -> tuple[int, str]:
        own = worker.role
        if team == "world":
            return len(self._workers), "world"
        if team == "node":
            count = sum(each.role.node_kind == own.node_kind for each in self._workers)
            return count, f"node {own.node_kind}"
        count = sum(each.role.index == own.index for each in self._workers)
        return count, f"across {own.index}"
