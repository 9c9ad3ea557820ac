"""Who owns a lab: a name that shows, after any crash, whether its owner is still alive.

A lab's namespaces and folders carry the process id *and* the start time of the process that made
them. A process id alone would be reused sooner or later, and a dead lab would then look alive.
"""

from __future__ import annotations

import itertools
import os
import re

import psutil

PREFIX = "paceline"
_NAME = re.compile(rf"^{PREFIX}-(?P<pid>\d+)-(?P<start>\d+)-(?P<number>\d+)(-|$)")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Linux rounds the time of its boot to seconds, and two readings may differ by one.
_SAME_START_TICKS = 2 * _TICKS_PER_S
_numbers = itertools.count()


def new_lab_name() -> str:
    """A name for a lab of this process that no other lab on this machine has."""
    pid = os.getpid()
    return f"{PREFIX}-{pid}-{start_ticks(pid)}-{next(_numbers)}"


def is_orphan(name: str) -> bool:
    """Whether ``name`` is a lab's and its owner is gone; names of others are not."""
    match = _NAME.match(name)
    if match is None:
        return False
    pid, start = int(match["pid"]), int(match["start"])
    try:
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return is_zombie or abs(start_ticks(pid) - start) > _SAME_START_TICKS
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # hidden from us, so it is there
        return False


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks; on Linux since the boot, as the kernel counts.

    There, psutil adds the boot's time to what the kernel counts, and that time moves when the
    clock is set: a lab that is alive would look dead.
    """
    boot_s = psutil.boot_time() if psutil.LINUX else 0.0
    return round((float(psutil.Process(pid).create_time()) - boot_s) * _TICKS_PER_S)
