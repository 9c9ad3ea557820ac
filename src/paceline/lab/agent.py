"""One node's torchrun agent: ``python -m paceline.lab.agent TORCHRUN-ARGUMENTS…``.

torchrun itself, less what it writes when a worker fails or the job is stopped: a traceback, a table
and warnings on every node, under which the worker's own message is lost. The lab says in one line
which worker of all nodes failed first.
"""

from __future__ import annotations

import logging
import socket
import sys
from typing import Any

import torch.distributed
from torch._C._distributed_c10d import TCPStore
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

from paceline.ending import end_quickly


def main() -> None:
    """Act as torchrun; other exceptions, such as a failed rendezvous, keep their traceback."""
    end_quickly()
    logging.disable(logging.ERROR)
    # The two places where torchrun makes one.
    for place in (torch.distributed, c10d_rendezvous_backend):
        setattr(place, "TCPStore", _Store)  # noqa: B010
    try:
        run.main()
    except ChildFailedError:
        sys.exit(1)
    except SignalException as stop:
        sys.exit(128 + stop.sigval.value)


class _Store(TCPStore):
    """torch's store, listening on the address it was given; torch's own listens on all.

    Without namespaces that address is of the loopback, and nobody else is to reach it.
    """

    def __init__(
        self, host_name: str, port: int, *, is_master: bool = False, **settings: Any
    ) -> None:
        if is_master:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host_name, port))
            listener.listen()
            port = listener.getsockname()[1]
            settings["master_listen_fd"] = listener.detach()  # the store closes it
        super().__init__(host_name, port, is_master=is_master, **settings)


if __name__ == "__main__":
    main()
