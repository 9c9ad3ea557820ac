"""One node's torchrun agent: ``python -m paceline.lab.agent TORCHRUN-ARGUMENTS…``.

torchrun itself, less what it writes when a worker fails or the job is stopped: a traceback, a table
and warnings on every node, under which the worker's own message is lost. The lab says in one line
which worker of all nodes failed first.
"""

from __future__ import annotations

import logging
import sys

import torch.distributed
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

from paceline.ending import end_quickly
from paceline.teams.bound_store import BoundStore


def main() -> None:
    """Act as torchrun; other exceptions, such as a failed rendezvous, keep their traceback."""
    end_quickly()
    logging.disable(logging.ERROR)
    # The two places where torchrun makes one.
    for place in (torch.distributed, c10d_rendezvous_backend):
        setattr(place, "TCPStore", BoundStore)  # noqa: B010
    try:
        run.main()
    except ChildFailedError:
        sys.exit(1)
    except SignalException as stop:
        sys.exit(128 + stop.sigval.value)


if __name__ == "__main__":
    main()
