"""Saves of one training: one after the other, and in the background if asked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.teams import Team
from paceline.train.checkpoint import begin_save
from paceline.train.contents import Contents

_GRACE_S = 5.0
"""How long a worker that goes because of another one waits for its save."""


class Saver:
    """Writes saves. At most one is under way, and its error is raised by whoever comes next."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._team: Team | None = None
        self._under_way: Future[None] | None = None

    def save(
        self,
        folder: str | Path,
        contents: Contents,
        *,
        extra: Mapping[str, Any] | None,
        background: bool,
    ) -> Future[None]:
        """Write the next save, or begin to; the save before stays until this one is complete."""
        self.wait()
        if not background:
            begin_save(folder, contents, extra=extra or {})()
            return done()
        if self._team is None or self._executor is None:
            # A team of its own: training's calls must not meet those of the save.
            self._team = contents.workers.make_team("saving")
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="paceline-background-save")
        write = begin_save(folder, contents, extra=extra or {}, team=self._team)
        self._under_way = self._executor.submit(write)
        return self._under_way

    def wait(self) -> None:
        """Wait for the save that is under way, if any, and raise what it raised."""
        self._end(None)

    def _end(self, most_s: float | None) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result(most_s)

    def close(self, *, is_in_trouble: bool) -> None:
        """Wait for the save that is under way and end the thread.

        All workers have begun this save, and each writes on its own. So it is completed although
        training has failed, unless a worker has died. Then others may wait for this one, which
        waits for them: it gives up after some seconds, and its connections end.

        Args:
            is_in_trouble: Whether another error ends this training. A save that fails too is then
                told of in a warning.

        """
        try:
            self._end(_GRACE_S if is_in_trouble else None)
        except Exception as error:
            if not is_in_trouble:
                raise
            reason = str(error) or "others are missing"
            warnings.warn(
                f"the save that was under way is not complete: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        finally:
            if self._executor is not None:
                self._executor.shutdown(wait=not is_in_trouble)
            self._executor = self._team = None


def done() -> Future[None]:
    """Nothing that is under way."""
    nothing: Future[None] = Future()
    nothing.set_result(None)
    return nothing
