"""Who is missing: workers that die, stop, come late, or wait for each other."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

import pytest
import torch
import torch.distributed as dist

import workloads
from hosts import launched, live_on, needs_root
from jobs import run_job, run_launched
from paceline.teams import TeamError, Workers, find_workers
from paceline.teams.workers import form_workers
from paceline.train import attach

HOST = socket.gethostname()


def layout_of(workers: Workers, *, timeout_s: float) -> Workers:
    """The same nodes with a timeout; the watch speaks after a quarter of it."""
    return form_workers(workers.ranks_by_node, timeout_s=timeout_s)


def die_and_tell(given: Workers) -> str:
    workers = layout_of(given, timeout_s=60.0)
    workers.watch.at_step(11)
    workers.world.agree(1.0)
    if workers.world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(TeamError) as problem:
        workers.world.agree(1.0)
    assert isinstance(problem.value.__cause__, RuntimeError)
    return str(problem.value)


def test_a_killed_worker_is_named() -> None:
    first, second, _ = run_job(die_and_tell, nodes=(2, 1), dying=[2])
    for rank, message in enumerate((first, second)):
        assert message == (
            f"worker {rank} on node 0 ({HOST}): all_reduce over the team world failed at step 12: "
            f"worker 2 on node 1 ({HOST}) has died"
        )


def pass_on_bad_news(given: Workers) -> str:
    """Worker 1 never hears of worker 2: it only sees that worker 0 is gone."""
    workers = layout_of(given, timeout_s=60.0)
    workers.world.agree(1.0)
    if workers.world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    team = workers.across if workers.world.rank == 0 else workers.node
    with pytest.raises(TeamError) as problem:
        team.agree(1.0)
    workers.close()
    return str(problem.value)


def test_the_first_to_die_is_named_not_the_messenger() -> None:
    _, message, _ = run_job(pass_on_bad_news, nodes=(2, 1), dying=[2])
    assert "over the team node failed" in message
    assert message.endswith(f"worker 2 on node 1 ({HOST}) has died")


def die_elsewhere() -> str:
    live_on(os.environ["TEST_HOST"])
    workers = find_workers(timeout_s=60.0)
    workers.world.agree(1.0)
    if workers.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(TeamError) as problem:
        workers.world.agree(1.0)
    return str(problem.value)


@needs_root
def test_a_worker_that_died_on_another_machine_is_named() -> None:
    environments = [
        variables | {"TEST_HOST": host}
        for variables, host in zip(
            launched("", [[0], [1]], rank="RANK", size="WORLD_SIZE", place="LOCAL_RANK"),
            ("host-a", "host-b"),
            strict=True,
        )
    ]
    message, _ = run_launched(die_elsewhere, environments=environments, dying=[1])
    assert message.startswith("worker 0 on node 0 (host-a): all_reduce over the team world failed")
    assert message.endswith("no sign of life from worker 1 on node 1 (host-b)")


def stop_and_dawdle(given: Workers) -> tuple[str, float]:
    """Worker 1 comes late, worker 2 is stopped for a while; worker 0 waits for both."""
    workers = layout_of(given, timeout_s=14.0)
    rank = workers.world.rank
    pids = [int(pid) for pid in workers.world.gather(str(os.getpid()).encode())]
    workers.watch.at_step(4)
    said = io.StringIO()
    with redirect_stderr(said):
        if rank == 0:
            threading.Timer(7.0, os.kill, [pids[2], signal.SIGCONT]).start()
        elif rank == 1:
            time.sleep(6.0)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        total = workers.world.agree(1.0, "sum")
    return said.getvalue(), total


def test_workers_that_are_stopped_or_late_are_named_and_survived() -> None:
    (said, total), (_, _), (_, other_total) = run_job(stop_and_dawdle, nodes=(2, 1))
    assert total == other_total == 3.0
    first, *others = said.splitlines()
    assert first.startswith(f"paceline: worker 0 on node 0 ({HOST}) has waited ")
    assert " s in all_reduce over the team world at step 5; not there: " in first
    assert f"worker 1 on node 0 ({HOST}) (which computes at step 5, for " in first
    assert f"worker 2 on node 1 ({HOST}) (no sign of life for " in first
    assert len(others) <= 1  # after 3.5 s, and not before 7 s again


def never_come(given: Workers) -> str:
    workers = layout_of(given, timeout_s=2.0)
    if workers.world.rank == 1:
        return ""
    with pytest.raises(TeamError) as problem:
        workers.across.all_reduce(torch.ones(1)).wait()
    return str(problem.value)


def test_who_was_not_there_when_time_was_up() -> None:
    message, _ = run_job(never_come, nodes=(1, 1))
    assert "all_reduce over the team across failed at step 1: timed out after 2 s; " in message
    assert f"not there: worker 1 on node 1 ({HOST}) (which computes at step 1, for " in message


def train(workers: Workers, num_steps: Sequence[int], *, timeout_s: float) -> Any:
    rank = workers.world.rank
    model, optimizer = workloads.build("normed", "momentum")
    nodes = layout_of(workers, timeout_s=timeout_s)
    with attach(model, optimizer, "sync", workers=nodes) as pace:
        for step in range(num_steps[rank]):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, rank))
            optimizer.step()
        return pace.stats.num_steps


def train_unequally(workers: Workers) -> tuple[str, float]:
    begun_s = time.monotonic()
    with pytest.raises(TeamError) as problem, redirect_stderr(io.StringIO()):
        train(workers, (2, 4, 4), timeout_s=10.0)
    return str(problem.value), time.monotonic() - begun_s


def test_unequal_numbers_of_batches_end_in_a_sentence() -> None:
    places = (
        f"worker 0 on node 0 ({HOST}) in finish() after step 2 and "
        f"workers 1 and 2 on node 0 ({HOST}) and node 1 ({HOST}) in all_reduce over the team world "
        "at step 3"
    )
    for rank, (message, took_s) in enumerate(run_job(train_unequally, nodes=(2, 1))):
        assert message.startswith(f"worker {rank} on node {rank // 2} ({HOST}): ")
        assert f"the workers wait for each other: {places}; " in message
        assert message.endswith("put the loop into `with pace.join():`")
        assert took_s < 9.5  # not by the timeout


def call_in_another_order(given: Workers) -> str:
    workers = layout_of(given, timeout_s=6.0)
    team = workers.world if workers.world.rank == 0 else workers.across
    with pytest.raises(TeamError) as problem, redirect_stderr(io.StringIO()):
        team.agree(1.0)
    return str(problem.value)


def test_calls_in_another_order_end_in_a_sentence() -> None:
    for message in run_job(call_in_another_order, nodes=(1, 1)):
        assert f"worker 0 on node 0 ({HOST}) in all_reduce over the team world" in message
        assert f"worker 1 on node 1 ({HOST}) in all_reduce over the team across" in message
        assert message.endswith("all workers must make the same calls in the same order")


def wait_in_the_background(given: Workers) -> float:
    """The training waits for its own background, which pauses: all wait, and yet go on."""
    workers = layout_of(given, timeout_s=6.0)
    rank = workers.world.rank
    background = workers.background
    device = torch.device("cpu")

    def exchange() -> None:
        if rank == 0:
            background.pause(4.0)
        background.across.agree(1.0)

    pending = background.run(exchange, device=device)
    with redirect_stderr(io.StringIO()):
        if rank == 0:
            total = workers.world.agree(1.0, "sum")
            pending.wait()
        else:
            pending.wait()
            total = workers.world.agree(1.0, "sum")
    return total


def test_a_background_that_is_busy_is_no_deadlock() -> None:
    assert run_job(wait_in_the_background, nodes=(1, 1)) == [2.0, 2.0]


def fail_alone(given: Workers) -> str:
    workers = layout_of(given, timeout_s=60.0)
    model, optimizer = workloads.build("plain", "momentum")
    kind: type[Exception] = KeyError if workers.world.rank == 1 else TeamError
    with pytest.raises(kind) as problem, attach(model, optimizer, "sync", workers=workers):
        if workers.world.rank == 1:
            raise KeyError("labels")
        workers.world.agree(1.0)
    workers.close()
    return str(problem.value)


def test_a_worker_that_fails_says_why_it_does_not_come() -> None:
    first, _, third = run_job(fail_alone, nodes=(2, 1))
    for message in (first, third):
        assert message.endswith(f"worker 1 on node 0 ({HOST}) has failed with KeyError: 'labels'")


def die_before_the_end(given: Workers) -> str:
    workers = layout_of(given, timeout_s=60.0)
    workers.watch.meet("start")
    if workers.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(TeamError) as problem:
        workers.watch.meet("finish()")
    return str(problem.value)


def test_a_meeting_does_not_wait_for_the_dead() -> None:
    message, _ = run_job(die_before_the_end, nodes=(1, 1), dying=[1])
    assert message.endswith(f"finish() failed at step 1: worker 1 on node 1 ({HOST}) has died")


def threads_after_closing(given: Workers) -> list[str]:
    workers = layout_of(given, timeout_s=60.0)
    given.close()
    before = {thread.name for thread in threading.enumerate()}
    workers.close()
    dist.barrier()
    after = [thread.name for thread in threading.enumerate()]
    assert {"paceline-watch", "paceline-store"} <= before
    return [name for name in after if name in ("paceline-watch", "paceline-store")]


def test_the_watch_ends_with_its_workers() -> None:
    assert run_job(threads_after_closing, nodes=(1, 1)) == [[], []]
    assert "paceline-watch" not in {thread.name for thread in threading.enumerate()}


def fail_beside_a_fork(given: Workers, is_closed: bool) -> tuple[str, float]:
    """One worker fails while a process that it has forked holds its connections."""
    workers = layout_of(given, timeout_s=40.0)
    is_second = workers.world.rank == 1
    child = os.fork() if is_second else None
    if child == 0:
        time.sleep(30.0)
        os._exit(0)
    model, optimizer = workloads.build("plain", "momentum")
    kind: type[Exception] = KeyError if is_second else TeamError
    began_s = time.monotonic()
    with pytest.raises(kind) as problem, attach(model, optimizer, "sync", workers=workers):
        if is_second:
            raise KeyError("labels")
        workers.world.agree(1.0)
    took_s = time.monotonic() - began_s
    if is_second and not is_closed:
        time.sleep(15.0)
    workers.close()
    if child is not None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return str(problem.value), took_s


@pytest.mark.parametrize(("is_closed", "most_s"), [(True, 8.0), (False, 14.0)])
def test_a_worker_that_fails_is_noticed_where_a_fork_holds_its_connections(
    is_closed: bool, most_s: float
) -> None:
    first, _, third = run_job(fail_beside_a_fork, is_closed, nodes=(2, 1))
    for message, took_s in (first, third):
        assert message.endswith("has failed with KeyError: 'labels'")
        assert took_s < most_s
