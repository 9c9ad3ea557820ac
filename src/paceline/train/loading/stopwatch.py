"""How long a worker computes on a batch: from asking for it to the end of its backward pass.

Waiting for other workers comes after that, and is not in it. On a GPU, events on its stream tell,
because the host runs ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

import torch

_KEPT = 64


class Stopwatch:
    """Times batches, and keeps what each took per sample.

    Args:
        device: Where the model is.
        clock: Seconds since some moment.
        waited_s: Seconds that were spent waiting for others so far.

    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float], waited_s: Callable[[], float]
    ) -> None:
        self._device = device
        self._clock = clock
        self._waited_s = waited_s
        self._start: float | torch.cuda.Event | None = None
        self._units = 0.0
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event, float]] = deque(maxlen=_KEPT)
        self._costs: deque[float] = deque(maxlen=_KEPT)

    def start(self) -> None:
        """The worker asks for a batch."""
        self._start = self._now()
        self._units = 0.0

    def cancel(self) -> None:
        """The batch at hand is not trained on."""
        self._start = None

    def got(self, units: float) -> None:
        """It got one with so many samples, or so much of the samples' sizes."""
        self._units = units

    def stop(self) -> None:
        """The backward pass is over."""
        start, self._start = self._start, None
        if start is None or not self._units:
            return
        now = self._now()
        if isinstance(start, torch.cuda.Event):
            assert isinstance(now, torch.cuda.Event)
            self._events.append((start, now, self._units))
        elif isinstance(now, float):
            self._costs.append(max(now - start, 1e-9) / self._units)

    def take(self) -> float | None:
        """Seconds per unit, the median since the last call; None if nothing was timed."""
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            start, end, units = self._events.popleft()
            self._costs.append(max(start.elapsed_time(end) / 1e3, 1e-9) / units)
        if not self._costs:
            return None
        found = median(self._costs)
        self._costs.clear()
        return found

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return self._clock() - self._waited_s()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
