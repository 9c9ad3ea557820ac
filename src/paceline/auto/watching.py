"""Watches a strategy that was chosen: how long its steps take, and how fast its exchanges are.

The exchanges of training itself are observed, so that watching costs no message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LEAST_BYTES = 1 << 14
_BETWEEN_NODES = ("world", "across")
# Steps vary by some percent by themselves, and rates more: workers share cores and come late.
_OTHER_STEP, _OTHER_RATE = 1.35, 1.7
_PAUSE = 3.0
_MOST_DEAF = 7


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some steps in a row, as one worker saw them."""

    step_s: float
    rate_bytes_per_s: float
    """Of exchanges between nodes; 0 if none was seen."""


class ExchangeObserver:
    """Adds up the bytes and seconds of exchanges between nodes.

    Args:
        clock: Seconds since some moment.
        is_on: Whether ends are seen here: what a GPU carries is only queued by the host.
    """

    def __init__(self, clock: Callable[[], float], *, is_on: bool) -> None:
        self.now = clock
        self.is_on = is_on
        self._lock = threading.Lock()
        self._num_bytes, self._seconds = 0, 0.0

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        """A collective, or a message, is over."""
        if team in _BETWEEN_NODES and num_bytes >= _LEAST_BYTES:
            with self._lock:
                self._num_bytes += num_bytes
                self._seconds += end_s - start_s

    def background_work(self, start_s: float, end_s: float) -> None:
        """Its collectives are told one by one."""

    def waited(self, start_s: float, end_s: float) -> None:
        """Strategies count their waits themselves."""

    def take_rate(self) -> float:
        """Bytes per second since the last call; 0 if none was seen."""
        with self._lock:
            rate = self._num_bytes / self._seconds if self._seconds > 0 else 0.0
            self._num_bytes, self._seconds = 0, 0.0
        return rate


class StepClock:
    """How long steps take; a pause in between, such as an evaluation, is left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Count anew from here."""
        self._last_s = self._clock()
        self._steps_s: list[float] = []

    def end_step(self) -> None:
        """A step is over."""
        now_s = self._clock()
        self._steps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def mean_s(self) -> float:
        """Seconds per step. One step that is far longer than any other counts as the next."""
        *others, second, longest = [0.0, *sorted(self._steps_s)]
        if others and longest > _PAUSE * second > 0:
            longest = second
        return (sum(others) + second + longest) / len(self._steps_s)


class Reference:
    """What windows of one strategy looked like, and whether a new one is different."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.num_deaf = 0
        """How many windows go by unheeded: after false alarms, ever more."""
        self._num_false = 0

    def look(self, window: Window) -> bool:
        """Take in a window; whether it is so different that the links may have changed."""
        if self.num_deaf:
            self.num_deaf -= 1
        elif self.is_other(window):
            return True
        self.windows.append(window)
        return False

    def false_alarm(self, window: Window) -> None:
        """The links are what they were: steps are different by now, or vary."""
        self.windows = [window]
        self._num_false += 1
        self.num_deaf = min(2**self._num_false - 1, _MOST_DEAF)

    def is_other(self, window: Window) -> bool:
        """Whether a window is unlike the first one."""
        if not self.windows:
            return False
        first = self.windows[0]
        return _differs(window.step_s, first.step_s, _OTHER_STEP) or _differs(
            window.rate_bytes_per_s, first.rate_bytes_per_s, _OTHER_RATE
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "windows": [[each.step_s, each.rate_bytes_per_s] for each in self.windows],
            "num_deaf": self.num_deaf,
            "num_false": self._num_false,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What :meth:`state_dict` returned."""
        self.windows = [Window(step_s=own, rate_bytes_per_s=rate) for own, rate in state["windows"]]
        self.num_deaf = state["num_deaf"]
        self._num_false = state["num_false"]


def _differs(one: float, other: float, factor: float) -> bool:
    return min(one, other) > 0 and max(one, other) > factor * min(one, other)


def agreed_window(told: list[dict[str, Any]]) -> Window:
    """One window of all workers: the slowest one's steps, and exchanges as the last to come saw."""
    return Window(
        step_s=max(each["step_s"] for each in told),
        rate_bytes_per_s=max(each["rate_bytes_per_s"] for each in told),
    )
