"""Background work: what the workers do together while they compute.

Background work runs in order, on one thread (and on CUDA on one stream) of its own, over teams of
its own: two threads that call the same team would meet other workers' calls in another order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from paceline.teams.team import Pending, Team
from paceline.teams.watch import BACKGROUND, Call, Watch

_OWN_WORK = Call(BACKGROUND, "work in the background", 0)


class BackgroundPending(Pending):
    """A function that runs in the background."""

    def __init__(self, future: Future[torch.cuda.Event | None], watch: Watch | None = None) -> None:
        self._future = future
        self._watch = watch

    def wait(self) -> None:
        """Block until the function has returned; what it raised is raised here."""
        event = self._result()
        if event is not None:
            event.wait()

    def _result(self) -> torch.cuda.Event | None:
        if self._watch is None or self._future.done():
            return self._future.result()
        thread, waits = threading.get_ident(), self._watch.waits
        waits[thread] = _OWN_WORK, time.monotonic()
        try:
            return self._future.result()
        finally:
            waits.pop(thread, None)

    def done(self) -> bool:
        """Whether the function has returned and the device has done its work."""
        if not self._future.done():
            return False
        event = self._future.result()
        return event is None or bool(event.query())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Background:
    """Background work of one worker, and the teams that only it may use."""

    node: Team
    across: Team
    watch: Watch = field(default_factory=Watch, repr=False)
    _executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="paceline-background")
    )
    _streams: dict[int, torch.cuda.Stream] = field(default_factory=dict)

    def run(self, work: Callable[[], None], *, device: torch.device) -> Pending:
        """Run a function after all background work that was requested before it."""
        if device.type != "cuda":
            return self._pending(self._executor.submit(_on_cpu, work))
        index = torch.cuda.current_device() if device.index is None else device.index
        stream = self._streams.setdefault(index, torch.cuda.Stream(index))  # type: ignore[no-untyped-call]
        ready = torch.cuda.current_stream(index).record_event()
        return self._pending(self._executor.submit(_on_stream, work, stream, ready))

    def _pending(self, future: Future[torch.cuda.Event | None]) -> Pending:
        self.watch.background_work = future
        return BackgroundPending(future, self.watch)

    def beside(self) -> Background:
        """Another background with a thread of its own, for what must not wait behind this one."""
        return Background(node=self.node, across=self.across, watch=self.watch)

    def cross(self, work: Callable[[], None]) -> None:
        """Do what talks to other nodes; called from background work, on all workers of a node.

        Where nodes may be lost, this does it again with those that are left. The function must
        give the same when it is called again.
        """
        work()

    @property
    def absent(self) -> frozenset[int]:
        """The nodes that did not take part in the last :meth:`cross`; called from there."""
        return frozenset()

    def pause(self, seconds: float) -> None:
        """Leave the links to others for a while; called from background work."""
        time.sleep(seconds)

    def close_added(self) -> None:
        """End what was added to the background that a job's workers came with: here, nothing."""

    def close(self) -> None:
        """Finish what was requested and end the thread."""
        self._executor.shutdown(wait=True)


def _on_cpu(work: Callable[[], None]) -> None:
    # Gradients never flow through communication, and grad mode is a thread's own.
    with torch.no_grad():
        work()


def _on_stream(
    work: Callable[[], None], stream: torch.cuda.Stream, ready: torch.cuda.Event
) -> torch.cuda.Event:
    with torch.no_grad(), torch.cuda.device(stream.device), torch.cuda.stream(stream):
        stream.wait_event(ready)
        work()
        done: torch.cuda.Event = stream.record_event()
        return done
