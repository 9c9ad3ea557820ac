"""Workers give back what they hold."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.teams.workers import form_workers
from paceline.train import attach


def held() -> tuple[int, int]:
    """File descriptors and threads of this process."""
    own = psutil.Process()
    return own.num_fds(), own.num_threads()


def attach_again_and_again(_workers: Workers, num_cycles: int) -> list[tuple[int, int]]:
    counts = []
    for cycle in range(num_cycles):
        model, optimizer = workloads.build("plain", "momentum")
        with attach(model, optimizer, "daso", warmup_steps=1) as pace:
            for step in range(2):
                optimizer.zero_grad()
                torch.autograd.backward(workloads.batch_loss(model, step, pace.workers.world.rank))
                optimizer.step()
        if cycle % 7 == pace.workers.world.rank:
            time.sleep(0.05)  # one is behind the others, each time another
        counts.append(held())
    return counts


def test_attaching_and_detaching_leaks_nothing() -> None:
    for counts in run_job(attach_again_and_again, 30, nodes=(2, 2)):
        descriptors, threads = zip(*counts, strict=True)
        # The first cycles open what stays; one more may be on its way out.
        assert max(descriptors[10:]) <= max(descriptors[:5]) + 2
        assert max(threads[10:]) <= max(threads[:5]) + 2


def close_twice(workers: Workers) -> list[str]:
    own = form_workers([[0], [1]])
    own.background.run(lambda: None, device=DEVICE).wait()
    own.close()
    own.close()
    with pytest.raises(ValueError, match="closed") as problem:
        own.world.agree(1.0)
    # Neither the default group nor other workers of the same job are concerned.
    dist.barrier()
    assert workers.world.agree(1.0, "sum") == 2.0
    names = [thread.name for thread in threading.enumerate()]
    return [str(problem.value), *(name for name in names if name.startswith("paceline"))]


def test_closed_teams_say_so_and_others_work_on() -> None:
    for first, *names in run_job(close_twice, nodes=(1, 1)):
        assert "find the workers again" in first
        assert not any(name.startswith("paceline-background") for name in names)


def close_while_waiting(_workers: Workers) -> Any:
    """Worker 1 never comes; worker 0 has a call under way, here and in the background."""
    workers = form_workers([[0], [1]], timeout_s=100.0)
    dist.barrier()
    if workers.world.rank == 1:
        dist.barrier()  # not before worker 0 is through
        return 0.0
    pending = workers.world.all_reduce(torch.ones(1))
    background = workers.background
    background.run(lambda: background.across.all_reduce(torch.ones(1)).wait(), device=DEVICE)
    begun = time.monotonic()
    workers.close()
    took_s = time.monotonic() - begun
    with pytest.raises(RuntimeError):
        pending.wait()
    dist.barrier()
    return took_s


def test_closing_does_not_wait_for_workers_that_never_come() -> None:
    took_s, _ = run_job(close_while_waiting, nodes=(1, 1))
    assert took_s < 20.0  # of a hundred


FORGETFUL = """\
import atexit
import sys
import psutil
import torch
import paceline

# By number: a thread is there at once, but names itself only when it runs.
def threads():
    return {each.id for each in psutil.Process().threads()}

def is_gloo(thread):
    try:
        return "gloo" in open(f"/proc/self/task/{thread}/comm").read()
    except OSError:  # it has ended meanwhile
        return False

def ours():
    return sum(is_gloo(each) for each in threads() - default)

# In one piece, since both workers write into the same pipe.
def say(what):
    sys.stdout.write(f"{what} {ours()}\\n")

# Called last: after what paceline itself does when Python ends.
atexit.register(say, "left:")
torch.distributed.init_process_group("gloo")
default = threads()
workers = paceline.find_workers()
workers.world.all_reduce(torch.ones(4)).wait()
say("used:")
"""


def test_python_ends_what_nobody_has_closed(tmp_path: Path) -> None:
    """A group's thread that is still there may abort the process, which is seen now and then."""
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "--standalone", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert all(int(number) > 0 for name, number in found if name == "used:")
    assert [number for name, number in found if name == "left:"] == ["0", "0"]
