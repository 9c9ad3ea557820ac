"""One node's torchrun agent: ``python -m paceline.lab.agent TORCHRUN-ARGUMENTS…``.

torchrun itself, less what it writes when a worker fails or the job is stopped: a traceback, a table
and warnings on every node, under which the worker's own message is lost. The lab says in one line
which worker of all nodes failed first.
"""

from __future__ import annotations

import logging
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from paceline.ending import end_quickly


def main() -> None:
    """Act as torchrun; other exceptions, such as a failed rendezvous, keep their traceback."""
    end_quickly()
    logging.disable(logging.ERROR)
    try:
        run.main()
    except ChildFailedError:
        sys.exit(1)
    except SignalException as stop:
        sys.exit(128 + stop.sigval.value)


if __name__ == "__main__":
    main()
