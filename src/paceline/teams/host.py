"""Which machine this is, and which of its processes live."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def machine() -> str:
    """A name for this machine that no other has: host names repeat, as in a cloud's images."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:  # not Linux; the time of the boot would move when the clock is set
        boot = str(uuid.getnode())
    return f"{socket.gethostname()}/{boot}"


def process_table() -> str:
    """A name for the process table that this process sees: containers have their own."""
    try:
        return f"{machine()}/{_PID_NAMESPACE.readlink()}"
    except OSError:  # not Linux
        return machine()


def start_time(pid: int) -> float:
    """When a process of this machine started; with its id it names the process for good."""
    return float(psutil.Process(pid).create_time())


def is_alive(pid: int, started: float) -> bool:
    """Whether a process of this machine still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - started) < 1.0
        return is_same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # hidden from us, so it is there
        return True
