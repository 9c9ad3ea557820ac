"""The processes of labs. Each carries its lab's name in its environment, and so do its children.

A chain of parents can break: one link killed with SIGKILL at the wrong moment, and what hangs from
it lives on. A name in the environment does not break.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import psutil

from paceline.lab.owner import is_orphan

ENVIRONMENT_VARIABLE = "PACELINE_LAB_NAME"


def end_processes(lab_name: str) -> None:
    """SIGKILL what is left of a lab's processes."""
    kill_all(lambda: _processes(lambda name: name == lab_name))


def end_orphans() -> None:
    """SIGKILL the processes of labs whose owner died."""
    kill_all(lambda: _processes(is_orphan))


def kill_all(find: Callable[[], list[int]]) -> None:
    """SIGKILL what ``find`` finds, until it finds nothing more: processes may be forking."""
    pids: list[int] = []
    for _ in range(250):
        pids = find()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    raise RuntimeError(f"the lab's processes {', '.join(map(str, pids))} do not end")


def _processes(is_wanted: Callable[[str], bool]) -> list[int]:
    """Processes whose lab's name is wanted."""
    found = []
    for process in psutil.process_iter():
        # A process may end while we look, and others' environments are not ours to read.
        with contextlib.suppress(psutil.Error, OSError):
            name = process.environ().get(ENVIRONMENT_VARIABLE)
            if name is not None and is_wanted(name):
                found.append(process.pid)
    return found
