"""A wait that never happens: a mistake in a strategy, which nobody else would notice."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from paceline.teams.team import Pending
from paceline.teams.watch import Call, Watch


def never_waited_for(what: str) -> str:
    """What to say where ``what`` was begun and forgotten."""
    return (
        f"{what} was begun and never waited for, so its tensor may be used before the result is "
        "there; keep what it returns and give it to self.wait()"
    )


class OwedPending(Pending):
    """Something that must be waited for, or at least asked after; who forgets it is warned.

    Args:
        call: What was begun.
        watch: Knows whether waiting is still of use.

    """

    def __init__(self, call: Call, watch: Watch) -> None:
        self._call = call
        self._watch = watch
        self._is_owed = True

    def __del__(self) -> None:
        if self._is_owed and not self._watch.is_in_trouble:
            warnings.warn(never_waited_for(str(self._call)), RuntimeWarning, stacklevel=2)


class MessagesPending(OwedPending):
    """An operation that is made of messages."""

    def __init__(self, pending: Pending, call: Call, watch: Watch) -> None:
        super().__init__(call, watch)
        self._pending = pending

    def wait(self) -> None:
        """Block until the last message has arrived."""
        self._is_owed = False
        self._pending.wait()

    def done(self) -> bool:
        """Whether the last message has arrived."""
        self._is_owed = False
        return self._pending.done()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call a function when the last message has arrived, if that can be told."""
        self._pending.call_when_done(call)
