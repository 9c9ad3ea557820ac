from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from paceline.lab.owner import is_orphan, new_lab_name, start_ticks


def test_names_differ_and_their_owner_lives() -> None:
    first, second = new_lab_name(), new_lab_name()
    assert first != second
    for name in (first, second, f"{first}-switch", f"{second}-node0"):
        assert not is_orphan(name)


def test_an_owner_that_ended() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert is_orphan(f"paceline-{ended.pid}-0-0-node1")


def test_an_owner_that_nobody_has_waited_for_yet() -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert is_orphan(f"paceline-{zombie.pid}-{start_ticks(zombie.pid)}-0")
    zombie.wait()


def test_another_process_with_the_owners_id() -> None:
    _, pid, start, number = new_lab_name().split("-")
    assert not is_orphan(f"paceline-{pid}-{start}-{number}")
    assert is_orphan(f"paceline-{pid}-{int(start) - 10_000}-{number}")


def test_a_clock_that_was_set_kills_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    name = new_lab_name()
    create_time = psutil.Process.create_time
    boot_s = psutil.boot_time()
    # What Linux says after the clock was put forward by an hour.
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + 3600)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot_s + 3600)
    assert not is_orphan(name)


def test_a_stopped_owner_is_no_dead_one() -> None:
    stopped = subprocess.Popen(["sleep", "60"])
    stopped.send_signal(signal.SIGSTOP)
    try:
        assert not is_orphan(f"paceline-{stopped.pid}-{start_ticks(stopped.pid)}-0")
    finally:
        stopped.kill()
        stopped.wait()


@pytest.mark.parametrize(
    "name", ["", "lo", "paceline", "paceline-notes", "paceline-1x-2-3", "my-paceline-999999-1-1"]
)
def test_other_peoples_names_are_no_orphans(name: str) -> None:
    assert not is_orphan(name)
