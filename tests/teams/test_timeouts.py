"""How long workers wait for each other."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import workloads
from jobs import run_job
from paceline.teams import Team, Workers, find_workers
from paceline.teams.group import GroupTeam
from paceline.teams.groups import default_timeout_s, home_device
from paceline.teams.workers import form_workers
from paceline.train import attach


def timeouts_of(workers: Workers) -> set[float]:
    """The timeouts of all of a worker's groups."""
    background = workers.background
    teams: list[Team] = [workers.world, workers.node, workers.across]
    found = set()
    for team in [*teams, background.node, background.across]:
        assert isinstance(team, GroupTeam)
        options = team.group._get_backend(home_device(team.group)).options
        found.add(options._timeout.total_seconds())
    return found


def form_with_timeouts(workers: Workers) -> list[Any]:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "local-sgd", timeout=timedelta(seconds=41)) as pace:
        attached = timeouts_of(pace.workers)
    assert isinstance(workers.world, GroupTeam)
    return [
        default_timeout_s(),
        timeouts_of(workers),
        timeouts_of(form_workers([[0], [1]], timeout_s=42.5)),
        attached,
        workers.world.group is dist.group.WORLD,
    ]


def test_all_groups_have_the_timeout_asked_for_or_the_default_groups() -> None:
    for default, own, formed, attached, is_default in run_job(form_with_timeouts, nodes=(1, 1)):
        assert own == {default}
        assert formed == {42.5}
        assert attached == {41.0}
        assert not is_default


def give_up(_workers: Workers) -> tuple[float, str]:
    workers = form_workers([[0], [1]], timeout_s=2.0)
    begun = time.monotonic()
    if workers.world.rank == 1:
        return 0.0, ""
    with pytest.raises(RuntimeError) as problem:
        workers.world.all_reduce(torch.ones(1)).wait()
    return time.monotonic() - begun, str(problem.value)


def test_a_wait_ends_after_the_timeout() -> None:
    (waited_s, _message), _ = run_job(give_up, nodes=(1, 1))
    assert 1.5 < waited_s < 20.0


def ask_wrongly(workers: Workers) -> list[str]:
    model, optimizer = workloads.build("plain", "momentum")
    messages = []
    for timeout in (0, -1.0, timedelta(0), float("nan")):
        with pytest.raises(ValueError, match="more than 0") as problem:
            attach(model, optimizer, "sync", timeout=timeout)
        messages.append(str(problem.value))
    with pytest.raises(ValueError, match=r"find_workers\(timeout_s") as problem:
        attach(model, optimizer, "sync", workers=workers, timeout=5.0)
    with pytest.raises(ValueError, match="more than 0"):
        find_workers(timeout_s=0.0)
    return messages


def test_a_timeout_must_be_positive_and_is_given_where_workers_are_found() -> None:
    for messages in run_job(ask_wrongly, nodes=(1,)):
        assert len(messages) == 4
