"""torch's store, listening at one address alone."""

from __future__ import annotations

import socket
from typing import Any

from torch._C._distributed_c10d import TCPStore


class BoundStore(TCPStore):
    """Listens at the address it was given, where torch's own listens at all of them.

    Where that address is of the loopback, nobody else can reach it.
    """

    def __init__(
        self, host_name: str, port: int, *, is_master: bool = False, **settings: Any
    ) -> None:
        if is_master:
            family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
            listener = socket.create_server((host_name, port), family=family)
            port = int(listener.getsockname()[1])
            settings["master_listen_fd"] = listener.detach()  # the store closes it
        super().__init__(host_name, port, is_master=is_master, **settings)
