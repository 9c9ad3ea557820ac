"""The process groups behind one worker's teams: made together, cut together, ended together."""

from __future__ import annotations

import atexit
import math
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from paceline.teams.background import Background
from paceline.teams.connections import Connections

# How long a group's end may take: first alone, and again after its connections were cut.
_GRACE_S = 2.0


class Groups:
    """Makes groups of this worker, which all get one timeout."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = default_timeout_s() if timeout_s is None else timeout_s
        self._made: list[dist.ProcessGroup] = []
        self._connections = Connections()
        self._at_exit: Callable[[], None] | None = None

    def at_exit(self, close: Callable[[], None]) -> None:
        """Call ``close``, which ends the groups, when Python ends and nobody has ended them.

        A group's thread that is back from a call while Python ends would end the process with
        SIGABRT.
        """
        self._at_exit = close
        atexit.register(close)

    def make(
        self, partition: Sequence[Sequence[int]], *, connect_s: float = math.inf
    ) -> dist.ProcessGroup:
        """Create the groups of a partition of all workers (a collective call); return our own.

        Args:
            partition: The ranks of each group.
            connect_s: How long to wait for others who form them, if that is less than the timeout.

        """
        timeout = timedelta(seconds=min(connect_s, self.timeout_s))
        with self._connections.opened_here(but_port=_store_port()):
            group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(ranks) for ranks in partition], timeout=timeout
            )
        assert isinstance(group, dist.ProcessGroup)
        if connect_s < self.timeout_s:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout_s), group)
        self._made.append(group)
        return group

    def abort(self) -> None:
        """Make everything that is under way fail, here and where others wait for us."""
        self._connections.cut()

    def close(self, background: Background) -> None:
        """End the background's thread and the groups, with their connections and threads.

        A group ends when its last call has: usually at once. After an error a call may be waiting
        for a worker that will never come; then the connections are cut.
        """
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        groups, self._made = self._made, []

        def end() -> None:
            background.close()
            while groups:
                # Not one that the user has destroyed already, with the default group.
                if groups[-1] in dist.distributed_c10d._world.pg_map:
                    dist.destroy_process_group(groups[-1])
                groups.pop()

        ending = threading.Thread(target=end, name="paceline-end", daemon=True)
        try:
            ending.start()
        except RuntimeError:  # Python 3.12 and newer begin no thread while they end
            self.abort()
            end()
            return
        ending.join(_GRACE_S)
        if ending.is_alive():
            self.abort()
            ending.join(_GRACE_S)


def default_timeout_s() -> float:
    """The timeout of the default process group: what ``init_process_group`` was given."""
    group = dist.group.WORLD
    assert group is not None
    found: timedelta = group._get_backend(home_device(group)).options._timeout
    return found.total_seconds()


def home_device(group: dist.ProcessGroup) -> torch.device:
    """Where a tensor must live for the group to take it: the CPU, unless it has no CPU backend."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def default_store() -> Store:
    """Where the workers of the job met."""
    return dist.distributed_c10d._get_default_store()


def _store_port() -> int | None:
    store = default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "port", None)
