"""The connections of this worker's groups: the only handle on a Gloo call that is stuck.

Gloo's ``abort`` leaves a call that has begun alone, and a group's end waits for such calls. A call
ends at once when its connections do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


class Connections:
    """The sockets that were opened inside :meth:`opened_here`."""

    def __init__(self) -> None:
        self._inodes: dict[int, int] = {}

    @contextlib.contextmanager
    def opened_here(self, *, but_port: int | None) -> Iterator[None]:
        """Take note of what is opened inside; not of connections of the store's port."""
        before = _open_sockets()
        yield
        for descriptor, inode in _open_sockets().items():
            if before.get(descriptor) == inode:
                continue
            with _duplicate(descriptor, inode) as one:
                if one is not None and _is_connection(one, but_port):
                    self._inodes[descriptor] = inode

    def cut(self) -> None:
        """End them: what waits on one of them, here or at its other end, fails at once."""
        for descriptor, inode in self._inodes.items():
            with _duplicate(descriptor, inode) as one:
                if one is not None:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> dict[int, int]:
    found = {}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


@contextlib.contextmanager
def _duplicate(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket, held so that its number cannot pass to another; None if it already has."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as one:
        yield one


def _is_connection(one: socket.socket, but_port: int | None) -> bool:
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    # Gloo ends the process if its listening socket fails.
    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    try:
        return but_port not in (one.getsockname()[1], one.getpeername()[1])
    except OSError:  # not connected
        return False
