"""Whether a cluster can be emulated on this machine, seen by building a small one."""

from __future__ import annotations

import importlib.util
import os
import sys

from paceline.doctor.finding import Finding, note, ok
from paceline.lab import network
from paceline.lab.owner import new_lab_name

_RATE_BYTES_PER_S = 12.5e6


def check_lab() -> Finding:
    """Make a network namespace with a shaped link, and remove it."""
    reason, remedy = _missing()
    if not reason:
        try:
            with network.Network(new_lab_name(), [_RATE_BYTES_PER_S]):
                return ok("lab", "the kernel can shape links: one network namespace per node")
        except OSError as error:
            reason = str(error)
            remedy = "give the container the capabilities NET_ADMIN and SYS_ADMIN"
    return note("lab", f"links are emulated in software: {reason}", remedy)


def _missing() -> tuple[str, str]:
    if sys.platform != "linux":
        return "the kernel shapes links on Linux only", "use a Linux machine for shaped links"
    if importlib.util.find_spec("pyroute2") is None:
        return "pyroute2 is not installed", "pip install 'paceline[lab]'"
    if os.geteuid() != 0:
        return "shaping links needs root", "run paceline lab as root for shaped links"
    return "", ""
