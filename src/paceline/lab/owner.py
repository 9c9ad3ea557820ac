"""Who owns a lab: a name that tells, after any crash, whether its owner still lives.

A lab's namespaces and folders carry the process id *and* the start time of the process that made
them. A process id alone would be reused sooner or later, and a dead lab would then look alive.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

PREFIX = "paceline"
_NAME = re.compile(rf"^{PREFIX}-(?P<pid>\d+)-(?P<start>\d+)-(?P<number>\d+)(-|$)")
_numbers = itertools.count()


def new_lab_name() -> str:
    """A name for a lab of this process that no other lab on this machine has."""
    pid = os.getpid()
    return f"{PREFIX}-{pid}-{_start_ticks(pid) or 0}-{next(_numbers)}"


def is_orphan(name: str) -> bool:
    """Whether ``name`` is a lab's and its owner is gone; other people's names are no orphans."""
    match = _NAME.match(name)
    if match is None:
        return False
    pid, start = int(match["pid"]), int(match["start"])
    return not _is_alive(pid) or (start != 0 and _start_ticks(pid) != start)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) != "Z"


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty where there is no such process or file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The command, in parentheses, may itself hold spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def _state(pid: int) -> str | None:
    fields = _stat_fields(pid)
    return fields[0] if fields else None


def _start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot: field 22 of /proc/PID/stat (see proc(5))."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None
