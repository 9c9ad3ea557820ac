"""Everything that is asked of the job's store, on a thread and a connection of its own.

The store is a server on the first node. When its link is gone, a request may block forever, and
torch offers no way to end it; callers of the clerk choose how long they wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store

_ANSWER_S = 3.0
_LATE_ANSWER_S = 0.1

T = TypeVar("T")
_Request = Callable[[Store], None]


class UnreachableError(Exception):
    """The store has not answered in time, or its connection is broken."""


class Clerk:
    """Runs requests to the store in order. Its thread keeps no process alive."""

    def __init__(self, store: Store, *, prefix: str) -> None:
        connection = PrefixStore(prefix, store.clone())  # type: ignore[attr-defined]
        connection.set_timeout(timedelta(seconds=_ANSWER_S))
        self._late: Future[Any] | None = None
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=[connection, self._requests], name="paceline-store", daemon=True
        )
        self._thread.start()

    def begin(self, request: Callable[[Store], T]) -> Future[T]:
        """Ask for something."""
        future: Future[T] = Future()

        def run(store: Store) -> None:
            try:
                future.set_result(request(store))
            except Exception as error:
                future.set_exception(error)

        self._requests.put(run)
        return future

    def ask(self, request: Callable[[Store], T], *, timeout_s: float = _ANSWER_S) -> T:
        """Ask for something and wait for the answer; not again for as long while one is late."""
        is_late = self._late is not None and not self._late.done()
        future = self.begin(request)
        try:
            return future.result(_LATE_ANSWER_S if is_late else timeout_s)
        except (TimeoutError, RuntimeError) as error:
            self._late = future
            raise UnreachableError(str(error)) from error

    def close(self, *, timeout_s: float = _ANSWER_S) -> None:
        """End the thread after what was asked before.

        A thread that is back from the store while Python ends would end the process with SIGABRT.
        """
        self._requests.put(None)
        self._thread.join(timeout_s)


def _serve(store: Store, requests: SimpleQueue[_Request | None]) -> None:
    while (request := requests.get()) is not None:
        request(store)


def get_all(store: Store, keys: Sequence[str]) -> list[bytes]:
    """The values of keys that exist, in one request."""
    return store.multi_get(list(keys))


def get_if_there(store: Store, key: str) -> bytes | None:
    """A key's value, if there is one; does not wait for it."""
    return store.get(key) if store.check([key]) else None
