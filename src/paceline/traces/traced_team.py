"""Teams that tell an observer what they carry, and when.

They wrap any other teams, so a strategy does not know that it is observed.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from paceline.teams.background import Background
from paceline.teams.team import Op, Pending, Team, WrappedTeam
from paceline.teams.workers import Workers

_NUMBER_BYTES = 8

R = TypeVar("R")


class Observer(Protocol):
    """What is told. Its methods may be called on any thread."""

    @property
    def is_on(self) -> bool:
        """Whether what begins now is of interest."""

    def now(self) -> float:
        """Seconds since some moment."""

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        """A collective, or a message, of one of the teams is over."""

    def background_work(self, start_s: float, end_s: float) -> None:
        """Work in the background is over."""

    def waited(self, start_s: float, end_s: float) -> None:
        """The training had nothing to do but wait."""


class WatchedPending(Pending):
    """Something under way; the observer is told how long the training waited for it."""

    def __init__(self, pending: Pending, observer: Observer) -> None:
        self._pending = pending
        self._observer = observer

    def wait(self) -> None:
        """Block until the result is there."""
        if not self._observer.is_on or self._pending.done():
            self._pending.wait()
            return
        start_s = self._observer.now()
        self._pending.wait()
        self._observer.waited(start_s, self._observer.now())

    def done(self) -> bool:
        """Whether the result is there."""
        return self._pending.done()


class TracedPending(WatchedPending):
    """A collective; the observer is told once when it has ended."""

    def __init__(
        self, pending: Pending, observer: Observer, tell_end: Callable[[float], None]
    ) -> None:
        super().__init__(pending, observer)
        self._tell_end = tell_end
        self._has_ended = False
        self._lock = threading.Lock()
        pending.call_when_done(self._end)

    def wait(self) -> None:
        """Block until the result is there."""
        super().wait()
        self._end()

    def done(self) -> bool:
        """Whether the result is there."""
        is_done = super().done()
        if is_done:
            self._end()
        return is_done

    def _end(self) -> None:
        end_s = self._observer.now()
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._tell_end(end_s)


class TracedTeam(WrappedTeam):
    """A team that tells its observer of each operation: kind, bytes, beginning and end."""

    def __init__(self, team: Team, name: str, observer: Observer) -> None:
        super().__init__(team)
        self._name = name
        self._observer = observer

    def _traced(self, kind: str, num_bytes: int, begin: Callable[[], Pending]) -> Pending:
        observer = self._observer
        if not observer.is_on:
            return begin()
        start_s = observer.now()

        def tell_end(end_s: float) -> None:
            observer.collective(self._name, kind, num_bytes, start_s, end_s)

        return TracedPending(begin(), observer, tell_end)

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors."""
        return self._traced("all_reduce", tensor.nbytes, lambda: self._team.all_reduce(tensor, op))

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor."""
        return self._traced(
            "broadcast", tensor.nbytes, lambda: self._team.broadcast(tensor, source)
        )

    def reduce(self, tensor: torch.Tensor, root: int, op: Op = "sum") -> Pending:
        """Combine the members' tensors for one of them."""
        return self._traced("reduce", tensor.nbytes, lambda: self._team.reduce(tensor, root, op))

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each gets its share. The whole is its size."""
        return self._traced(
            "reduce_scatter", tensor.nbytes, lambda: self._team.reduce_scatter(output, tensor, op)
        )

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another. The whole is its size."""
        return self._traced(
            "all_gather", output.nbytes, lambda: self._team.all_gather(output, tensor)
        )

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member."""
        return self._traced("send", tensor.nbytes, lambda: self._team.send(tensor, to))

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive from one member."""
        return self._traced("receive", tensor.nbytes, lambda: self._team.receive(tensor, source))

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member, while this one waits."""
        return self._blocking("all_reduce", _NUMBER_BYTES, lambda: self._team.agree(number, op))

    def barrier(self) -> None:
        """Block until all members have called this."""
        self._blocking("barrier", _NUMBER_BYTES, self._team.barrier)

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, while this one waits."""
        num_bytes = len(data) * self.size
        return self._blocking("all_gather", num_bytes, lambda: self._team.gather(data))

    def _blocking(self, kind: str, num_bytes: int, call: Callable[[], R]) -> R:
        observer = self._observer
        if not observer.is_on:
            return call()
        start_s = observer.now()
        result = call()
        end_s = observer.now()
        observer.collective(self._name, kind, num_bytes, start_s, end_s)
        observer.waited(start_s, end_s)
        return result


class _BackgroundObserver:
    """Observes background work: all of it, if it was requested while the observer was on.

    It may run later than that. Its waits are not waits of the training.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.is_on = False

    def now(self) -> float:
        return self._observer.now()

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        self._observer.collective(team, kind, num_bytes, start_s, end_s)

    def background_work(self, start_s: float, end_s: float) -> None:
        self._observer.background_work(start_s, end_s)

    def waited(self, start_s: float, end_s: float) -> None:
        pass

    def run(self, work: Callable[[], None]) -> None:
        """Run in the background; one function at a time does, so a plain flag will do."""
        start_s, self.is_on = self.now(), True
        try:
            work()
        finally:
            self.is_on = False
            self.background_work(start_s, self.now())


@dataclass(frozen=True, kw_only=True)
class TracedBackground(Background):
    """Background work that tells an observer when it ran."""

    inner: Background
    observer: Observer
    _inner_observer: _BackgroundObserver = field(repr=False)

    def run(self, work: Callable[[], None], *, device: torch.device) -> Pending:
        """Run a function after all background work that was requested before it."""
        if not self.observer.is_on:
            return self.inner.run(work, device=device)
        pending = self.inner.run(lambda: self._inner_observer.run(work), device=device)
        return WatchedPending(pending, self.observer)

    def cross(self, work: Callable[[], None]) -> None:
        """Do what talks to other nodes."""
        self.inner.cross(work)

    @property
    def absent(self) -> frozenset[int]:
        """The nodes that did not take part in the last :meth:`cross`."""
        return self.inner.absent

    def pause(self, seconds: float) -> None:
        """Leave the links to others for a while."""
        self.inner.pause(seconds)

    def close(self) -> None:
        """Finish what was requested and end the thread."""
        self.inner.close()


def traced_workers(workers: Workers, observer: Observer) -> Workers:
    """The same workers, with teams that tell ``observer`` what they do."""
    inner = _BackgroundObserver(observer)
    background = workers.background
    return dataclasses.replace(
        workers,
        world=TracedTeam(workers.world, "world", observer),
        node=TracedTeam(workers.node, "node", observer),
        across=TracedTeam(workers.across, "across", observer),
        background=TracedBackground(
            inner=background,
            observer=observer,
            node=TracedTeam(background.node, "node", inner),
            across=TracedTeam(background.across, "across", inner),
            _inner_observer=inner,
        ),
    )
