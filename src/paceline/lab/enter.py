"""Start a command in a lab's namespace: ``python -m paceline.lab.enter NAMESPACE COMMAND…``.

The command also ends when the lab does, however the lab ends: the kernel sends it SIGTERM when its
parent dies (prctl(2), PR_SET_PDEATHSIG). torchrun answers SIGTERM by ending its workers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
NO_NAMESPACE = "-"


def end_with_parent(signal_number: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends (Linux; else nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def main() -> None:
    """Enter the namespace, then become the command."""
    namespace, *command = sys.argv[1:]
    if namespace != NO_NAMESPACE:
        from pyroute2 import netns

        netns.setns(namespace)
    end_with_parent(signal.SIGTERM)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
