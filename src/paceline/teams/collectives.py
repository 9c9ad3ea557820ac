"""By which algorithm a job's teams communicate: the backend's, a tree, a ring, or the faster."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from paceline.teams.background import Background
from paceline.teams.messages import ChosenTeam, MessageTeam, Run, run_inline
from paceline.teams.team import Pending, Team
from paceline.teams.workers import Workers

CollectiveName = Literal["backend", "tree", "ring", "auto"]

_TRIED_BYTES = (1 << 10, 1 << 13, 1 << 16, 1 << 19)
_NUM_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class MessageBackground(Background):
    """Background work over teams that communicate by messages."""

    inner: Background
    runner: Background

    def run(self, work: Callable[[], None], *, device: torch.device) -> Pending:
        """Run a function after all background work that was requested before it."""
        return self.inner.run(work, device=device)

    def cross(self, work: Callable[[], None]) -> None:
        """Do what talks to other nodes."""
        self.inner.cross(work)

    @property
    def absent(self) -> frozenset[int]:
        """The nodes that did not take part in the last :meth:`cross`."""
        return self.inner.absent

    def pause(self, seconds: float) -> None:
        """Leave the links to others for a while."""
        self.inner.pause(seconds)

    def close_added(self) -> None:
        """End the thread of the messages."""
        if self.runner is not self.inner:
            self.runner.close()

    def close(self) -> None:
        """Finish what was requested and end the threads."""
        self.close_added()
        self.inner.close()


def check_collective(collective: str) -> None:
    """Refuse an algorithm that there is not."""
    if collective not in get_args(CollectiveName):
        known = ", ".join(map(repr, get_args(CollectiveName)))
        raise ValueError(f"collective={collective!r} is not known; use one of {known}")


def with_collective(
    workers: Workers, collective: CollectiveName, *, device: torch.device | None = None
) -> Workers:
    """The same workers, whose teams communicate by another algorithm. All workers call it.

    Args:
        workers: The workers of the job.
        collective: ``"tree"`` and ``"ring"`` are messages between the members. ``"auto"`` times the
            tree and the backend's own all-reduce on this job's links, and takes for every size
            what was faster. ``"backend"`` changes nothing.
        device: Where the tensors are that ``"auto"`` times; by default in the host's memory.

    """
    check_collective(collective)
    if collective == "backend":
        return workers
    runner = workers.background.beside()
    front: Run = lambda work, device: runner.run(work, device=device)  # noqa: E731
    limits: dict[str, int] = {}

    def made(name: str, team: Team, run: Run) -> Team:
        if team.size == 1:
            return team
        if collective != "auto":
            return MessageTeam(team, algorithm=collective, run=run)
        if name not in limits:
            limits[name] = _largest_for_tree(team, run, device)
        return ChosenTeam(team, run=run, most_bytes=limits[name])

    background = workers.background
    return dataclasses.replace(
        workers,
        world=made("world", workers.world, front),
        node=made("node", workers.node, front),
        across=made("across", workers.across, front),
        background=MessageBackground(
            node=made("node", background.node, run_inline),
            across=made("across", background.across, run_inline),
            watch=background.watch,
            inner=background,
            runner=runner,
        ),
    )


def _largest_for_tree(plain: Team, run: Run, device: torch.device | None) -> int:
    """The largest size of those tried up to which the tree is faster; the slowest member counts."""
    tree = MessageTeam(plain, algorithm="tree", run=run)
    most = 0
    for num_bytes in _TRIED_BYTES:
        tensor = torch.zeros(num_bytes // 4, device=device)
        seconds = [plain.agree(_fastest_s(team, tensor), "max") for team in (plain, tree)]
        if seconds[1] > seconds[0]:
            break
        most = num_bytes
    return most


def _fastest_s(team: Team, tensor: torch.Tensor) -> float:
    times = []
    for _ in range(_NUM_TRIES):
        team.barrier()
        start_s = time.perf_counter()
        team.all_reduce(tensor, "sum").wait()
        tensor[:1].cpu()  # CUDA's stream has only been told to wait
        times.append(time.perf_counter() - start_s)
    return min(times)
