"""What happened when in a play, for traces."""

from __future__ import annotations

from functools import lru_cache

from paceline.collectives import Numbers
from paceline.teams.journal import Collective, Transfer
from paceline.traces.trace import Span, collective_name


class SpanLog:
    """Spans of all workers, if they are wanted."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.spans: list[Span] = []
        self.is_wanted = is_wanted

    def note(self, worker: int, track: str, name: str, start_s: Numbers, end_s: Numbers) -> None:
        """A worker did something from one moment to another."""
        if self.is_wanted and end_s > start_s:
            self.spans.append(Span(worker, track, name, float(start_s), float(end_s)))


@lru_cache(maxsize=4096)
def label(what: Collective | Transfer) -> str:
    """What a communication is called in traces and messages."""
    if isinstance(what, Collective):
        return collective_name(what.kind, what.num_bytes)
    return collective_name("send" if what.is_sent else "receive", what.num_bytes)
