"""Start an agent in a lab's namespace: ``python -m paceline.lab.enter PARENT NAMESPACE COMMAND…``.

The command also ends when the lab does, however the lab ends: the kernel sends it SIGTERM when its
parent, process PARENT, dies. torchrun answers SIGTERM by ending its workers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# Lets the agent's children know their parent, which has this process's id.
AGENT_VARIABLE = "PACELINE_LAB_AGENT"
# Names a process in whose mounts there is a disk that can be full.
DISK_VARIABLE = "PACELINE_LAB_DISK"
NO_NAMESPACE = "-"
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signal_number: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends (Linux; else nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        # The kernel reports only later deaths. If the parent is already dead, signal ourselves.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal_number)


def _enter_mounts(pid: int) -> None:
    folder = os.getcwd()  # noqa: PTH109
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the lab's disk")
    os.close(descriptor)
    os.chdir(folder)


def main() -> None:
    """Enter the namespace, then become the command."""
    parent, namespace, *command = sys.argv[1:]
    end_with_parent(int(parent), signal.SIGTERM)
    if namespace != NO_NAMESPACE:
        from pyroute2 import netns

        # Not O_CREAT, the default: a namespace that was swept must stay so.
        netns.setns(namespace, flags=os.O_RDONLY)
    if (disk := os.environ.pop(DISK_VARIABLE, None)) is not None:
        _enter_mounts(int(disk))
    os.environ[AGENT_VARIABLE] = str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
