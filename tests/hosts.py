"""What launchers leave in the environment of a job's workers, and hosts that are none."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Sequence

import pytest

_NEW_UTS_NAMESPACE = 0x04000000

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may rename a host"
)


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def launched(prefix: str, nodes: Sequence[Sequence[int]], **names: str) -> list[dict[str, str]]:
    """One environment for each worker, as a launcher would set it."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    num_workers = sum(len(ranks) for ranks in nodes)
    environments = {}
    for node, ranks in enumerate(nodes):
        for place, rank in enumerate(ranks):
            values = {"rank": rank, "size": num_workers, "place": place, "node": node}
            environments[rank] = address | {
                f"{prefix}{name}": str(values[meaning]) for meaning, name in names.items()
            }
    return [environments[rank] for rank in range(num_workers)]


def live_on(host: str) -> None:
    """Give this process a host name of its own, as if it ran on another machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_NEW_UTS_NAMESPACE) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(host)
    # Nobody knows the address of such a host.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
