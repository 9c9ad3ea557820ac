"""Whether all nodes that take part in something are still there."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from paceline.teams.clerk import Clerk, UnreachableError, get_if_there
from paceline.teams.live_groups import LiveGroups
from paceline.teams.meeting import MeetingPoint, beat_key


class Monitor:
    """Ends what is under way when a node that takes part gives no sign of life, or has failed."""

    def __init__(self, point: MeetingPoint) -> None:
        self._point = point
        self._silence_s = point.settings.silence_s
        self._lock = threading.Lock()
        self._task: tuple[str, list[str]] | None = None
        self._groups: LiveGroups | None = None
        self._clerk: Clerk | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="paceline-monitor", daemon=True)
        self._thread.start()

    def begin(self, name: str, replicas: Sequence[str]) -> None:
        """Something begins in which these lives of nodes take part."""
        with self._lock:
            self._task = name, list(replicas)

    def guard(self, groups: LiveGroups | None) -> None:
        """The connections to cut if one of them is lost."""
        with self._lock:
            self._groups = groups

    def end(self) -> None:
        """It is over."""
        with self._lock:
            self._task = None

    def tell_failure(self, name: str) -> None:
        """Let the others know that something was not done, so that they need not wait for it."""
        try:
            self._connect().begin(lambda store: store.set(_failure_key(name), "yes"))
        except RuntimeError:
            return  # the link is down; they will notice

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(1.0)
        self._hang_up()

    def _connect(self) -> Clerk:
        if self._clerk is None:
            self._clerk = Clerk(self._point.store(self._silence_s), prefix="")
        return self._clerk

    def _hang_up(self) -> None:
        clerk, self._clerk = self._clerk, None
        if clerk is not None:
            clerk.close(timeout_s=0.1)  # its thread ends when the store answers, or breaks off

    def _look_on(self) -> None:
        task: tuple[str, list[str]] | None = None
        seen: dict[str, tuple[bytes | None, float]] = {}
        while not self._ended.wait(min(1.0, self._silence_s / 5)):
            with self._lock:
                now = self._task
            if now is None:
                continue
            if now != task:
                task, seen = now, {}
            if self._is_broken(*now, seen):
                with self._lock:
                    if self._task == now and self._groups is not None:
                        self._groups.cut()

    def _is_broken(
        self, name: str, replicas: Sequence[str], seen: dict[str, tuple[bytes | None, float]]
    ) -> bool:
        def read(store: Store) -> tuple[bool, list[bytes | None]]:
            beats = [get_if_there(store, beat_key(replica)) for replica in replicas]
            return store.check([_failure_key(name)]), beats

        now_s = time.monotonic()
        beats: list[bytes | None] = [None] * len(replicas)
        try:
            has_failed, beats = self._connect().ask(read, timeout_s=self._silence_s / 2)
            if has_failed:
                return True
        except (UnreachableError, RuntimeError):
            self._hang_up()  # nothing heard is no sign of life either
            beats = [seen.get(replica, (None, now_s))[0] for replica in replicas]
        for replica, beat in zip(replicas, beats, strict=True):
            if replica not in seen or seen[replica][0] != beat:
                seen[replica] = beat, now_s
        return any(now_s - since_s > self._silence_s for _, since_s in seen.values())


def _failure_key(name: str) -> str:
    return f"paceline/failures/{name}"
