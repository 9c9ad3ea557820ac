"""Defects that are planted in real jobs, and found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from hosts import launched, live_on, needs_root
from jobs import run_launched
from paceline.doctor import facts as facts_module
from paceline.doctor.doctor import examine

TORCHRUN = {"rank": "RANK", "size": "WORLD_SIZE", "place": "LOCAL_RANK", "node": "GROUP_RANK"}


def job(**of_worker_1: str) -> list[dict[str, str]]:
    """Two workers; the second one finds other variables."""
    # The host's own name may not be known where the tests run.
    first, second = launched("", [[0, 1]], **TORCHRUN)
    return [
        {"GLOO_SOCKET_IFNAME": "lo"} | first,
        {"GLOO_SOCKET_IFNAME": "lo"} | second | of_worker_1,
    ]


def look(version_of_1: str = "", host_of_1: str = "", timeout_s: float = 60.0) -> Any:
    if os.environ["RANK"] == "1":
        facts_module.__version__ = version_of_1 or facts_module.__version__  # type: ignore[attr-defined]
        if host_of_1:
            interface = os.environ["GLOO_SOCKET_IFNAME"]
            live_on(host_of_1)
            os.environ["GLOO_SOCKET_IFNAME"] = interface
    outcome = examine(timeout_s=timeout_s)
    return None if outcome is None else outcome.to_dict()


def texts(outcome: dict[str, Any], level: str) -> list[str]:
    return [each["text"] for each in outcome["findings"] if each["level"] == level]


def test_a_job_in_which_nothing_is_wrong() -> None:
    outcome, other = run_launched(look, environments=job())
    assert other is None
    assert texts(outcome, "broken") == []
    assert "2 workers on 1 machine" in texts(outcome, "ok")
    assert "an all-reduce over 2 workers works" in texts(outcome, "ok")
    assert set(outcome["workers"]) == {"0", "1"}


def test_an_interface_that_does_not_exist() -> None:
    outcome, _ = run_launched(look, environments=job(GLOO_SOCKET_IFNAME="eth77"))
    assert outcome["verdict"] == "broken"
    (found,) = [each for each in outcome["findings"] if each["level"] == "broken"]
    assert "GLOO_SOCKET_IFNAME=eth77 names eth77" in found["text"]
    assert found["workers"] == (1,)
    assert found["remedy"].startswith("set GLOO_SOCKET_IFNAME=")
    # Nobody has tried to talk, and waited for the one that cannot.
    assert not any("all-reduce" in each["text"] for each in outcome["findings"])


def test_versions_and_variables_that_differ() -> None:
    environments = job(NCCL_ALGO="Ring", OMP_NUM_THREADS="3")
    outcome, _ = run_launched(look, "9.9.9", environments=environments)
    (broken,) = texts(outcome, "broken")
    assert broken.startswith("worker 1 on ")
    assert "paceline is 9.9.9 there" in broken
    warnings = " ".join(texts(outcome, "warning"))
    assert "NCCL_ALGO is Ring there and not set elsewhere" in warnings
    assert "OMP_NUM_THREADS is 3 there" in warnings


def test_more_workers_were_promised_than_came_and_two_have_one_rank() -> None:
    first, second = (each | {"WORLD_SIZE": "3"} for each in job())
    outcomes = run_launched(look, "", "", 5.0, environments=[first, second, second])
    broken = [text for each in outcomes if each is not None for text in texts(each, "broken")]
    assert any("another worker has rank 1" in text for text in broken)
    # On a machine that is very busy, others may be late, too.
    assert any(text.endswith("2 of 3 did not come") for text in broken)


@needs_root
def test_the_loopback_of_several_machines() -> None:
    outcome, _ = run_launched(look, "", "host-b", environments=job())
    broken = texts(outcome, "broken")
    assert "2 workers on 2 machines" in texts(outcome, "ok")
    assert any("names lo, the loopback, and this job has several machines" in t for t in broken)
    assert any("MASTER_ADDR=127.0.0.1 is the machine itself for worker 1" in t for t in broken)


def test_the_command_exits_with_1() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth77"},
        timeout=120,
    )
    assert done.returncode == 1
    outcome = json.loads(done.stdout)
    assert outcome["verdict"] == "broken"
    assert any("has no such interface" in text for text in texts(outcome, "broken"))
    assert outcome["workers"]["0"]["host"] == socket.gethostname()


def test_torchrun_starts_it() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [*command, "paceline", "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("an all-reduce over 2 workers works") == 1
    assert "torchrun started 2 workers" in done.stdout
