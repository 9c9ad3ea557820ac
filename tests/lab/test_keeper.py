"""A worker's keeper by itself, without torchrun around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab_machine import processes_with, wait_until
from paceline.lab.enter import AGENT_VARIABLE

Keep = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    """Start a keeper of a shell script, as worker 1 of node 3; the script's $0 is the folder."""
    kept: list[subprocess.Popen[str]] = []

    def begin(script: str, *options: str) -> subprocess.Popen[str]:
        place = {"GROUP_RANK": "3", "LOCAL_RANK": "1", AGENT_VARIABLE: str(os.getpid())}
        keeper = (sys.executable, "-m", "paceline.lab.worker", f"--record={tmp_path}", *options)
        kept.append(
            subprocess.Popen(
                [*keeper, "--", "sh", "-c", script, str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **place},
            )
        )
        return kept[-1]

    yield begin
    for keeper in kept:
        keeper.kill()
        keeper.communicate()


def test_every_line_gets_the_workers_name(keep: Keep) -> None:
    keeper = keep("echo one; echo two >&2; printf three")
    out, err = keeper.communicate(timeout=20)
    assert out.splitlines() == ["[node3:1] one", "[node3:1] three"]
    assert err.splitlines() == ["[node3:1] two"]
    assert keeper.returncode == 0


def test_a_failure_is_recorded(keep: Keep, tmp_path: Path) -> None:
    keeper = keep("exit 5")
    assert keeper.wait(timeout=20) == 5
    (note,) = tmp_path.glob("failure-*.json")
    told = json.loads(note.read_text())
    assert (told["node"], told["worker"], told["code"]) == (3, 1, 5)


def test_a_success_is_not(keep: Keep, tmp_path: Path) -> None:
    assert keep("exit 0").wait(timeout=20) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--slow=3:1=50",)])
def test_a_stop_reaches_the_command_even_while_it_is_slowed(
    keep: Keep, options: tuple[str, ...]
) -> None:
    keeper = keep('trap "echo told; exit 4" TERM; echo ready; sleep 60 & wait', *options)
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == "[node3:1] ready\n"
    keeper.terminate()
    assert keeper.stdout.readline() == "[node3:1] told\n"
    assert keeper.wait(timeout=20) == 4


def test_children_of_the_command_end_with_it(keep: Keep, tmp_path: Path) -> None:
    keeper = keep('sh -c "sleep 62.0456; :" $0 & echo started')
    assert keeper.wait(timeout=20) == 0
    wait_until(lambda: processes_with(str(tmp_path)) == [])


def test_the_command_ends_with_a_keeper_that_is_killed(keep: Keep, tmp_path: Path) -> None:
    keeper = keep("echo ready; sleep 62.0457; :")
    assert keeper.stdout is not None
    keeper.stdout.readline()
    keeper.send_signal(signal.SIGKILL)
    keeper.wait(timeout=20)
    wait_until(lambda: processes_with(str(tmp_path)) == [])


def test_a_keeper_without_its_agent_ends(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    orphan = subprocess.run(
        [sys.executable, "-m", "paceline.lab.worker", f"--record={tmp_path}", "--", "sleep", "60"],
        env={**os.environ, "GROUP_RANK": "0", "LOCAL_RANK": "0", AGENT_VARIABLE: str(ended.pid)},
        timeout=20,
    )
    assert orphan.returncode == -signal.SIGTERM
