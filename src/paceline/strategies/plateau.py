"""When a metric has gone flat."""

from __future__ import annotations

import math
from typing import Any


class Plateau:
    """Watches a metric that should fall.

    A report is an improvement if it is lower than the best so far by more than ``threshold``,
    relative to the best. More than ``patience`` reports in a row without one are a plateau; the
    count then starts again at zero.
    """

    def __init__(self, *, threshold: float, patience: int) -> None:
        self._threshold = threshold
        self._patience = patience
        self._best = float("inf")
        self._num_bad = 0

    def report(self, metric: float) -> bool:
        """Take a report; whether it completes a plateau."""
        # |best|, so that a negative metric (a log-likelihood) is judged the same way. NaN is no
        # improvement and never the best, or no later report could beat it.
        is_first = math.isinf(self._best)
        if metric < (self._best if is_first else self._best - self._threshold * abs(self._best)):
            self._best = metric
            self._num_bad = 0
            return False
        self._num_bad += 1
        if self._num_bad <= self._patience:
            return False
        self._num_bad = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"best": self._best, "num_bad": self._num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._best = state["best"]
        self._num_bad = state["num_bad"]
