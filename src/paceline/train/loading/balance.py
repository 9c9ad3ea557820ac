"""When shares change: decided from everybody's measured times, the same on every worker.

Only additions, products and comparisons of numbers that all workers have: every worker comes to the
same decision without being told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

LEAST_GAIN = 0.05
"""By how much shares must shorten the slowest worker's time, as predicted, to be changed."""
_MOST_NEEDED_GAIN = 0.2
_NOISE = 0.25
"""Times that differ by less are averaged with those before; others replace them."""
_MOST_AVERAGED = 8
_CALMING = 0.98
"""By which the needed gain shrinks at each look that changes nothing."""

Shares = Sequence[float]
"""What each worker has of the global batch, in samples or in the samples' sizes."""


class Balance:
    """The workers' speeds as they are known, and whether it is worth following a change of them.

    A worker's time is taken to be in proportion to its share, so a change that is too large or too
    small is mended by the next one. Shares do not oscillate: a change that takes back the one
    before doubles the gain that the next one needs.
    """

    def __init__(self, num_workers: int) -> None:
        self.speeds = [1.0] * num_workers
        """By which batches are shared."""
        self._costs = [(0.0, 0)] * num_workers
        """Seconds per unit, and how many looks they are the average of."""
        self._needed_gain = LEAST_GAIN
        self._last_moves = [0.0] * num_workers

    def update(self, costs: Sequence[float], share_by: Callable[[Sequence[float]], Shares]) -> bool:
        """Take in what a unit of a share costs each worker; whether the speeds have changed.

        Args:
            costs: Seconds per sample, or per size, of each worker.
            share_by: The shares that workers with such speeds would have.

        """
        self._costs = [
            _smoothed(*before, now) for before, now in zip(self._costs, costs, strict=True)
        ]
        known = [cost for cost, _ in self._costs]
        speeds = [1.0 / cost for cost in known]
        before, after = share_by(self.speeds), share_by(speeds)
        now_s, then_s = _longest_s(before, known), _longest_s(after, known)
        if then_s >= now_s * (1.0 - self._needed_gain):
            self._needed_gain = max(LEAST_GAIN, _CALMING * self._needed_gain)
            return False
        moves = [new - old for old, new in zip(before, after, strict=True)]
        largest = max(range(len(moves)), key=lambda place: abs(moves[place]))
        if moves[largest] * self._last_moves[largest] < 0:
            self._needed_gain = min(_MOST_NEEDED_GAIN, 2.0 * self._needed_gain)
        self._last_moves, self.speeds = moves, speeds
        return True

    def state_dict(self) -> dict[str, Any]:
        """Speeds and what the next change depends on."""
        return {
            "speeds": list(self.speeds),
            "costs": list(self._costs),
            "needed_gain": self._needed_gain,
            "last_moves": list(self._last_moves),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; another number of workers begins anew."""
        if len(state["speeds"]) != len(self.speeds):
            return
        self.speeds, self._costs = list(state["speeds"]), [tuple(one) for one in state["costs"]]
        self._needed_gain, self._last_moves = state["needed_gain"], list(state["last_moves"])


def _smoothed(before: float, count: int, now: float) -> tuple[float, int]:
    if abs(now - before) > _NOISE * before:
        return now, 1
    count = min(count + 1, _MOST_AVERAGED)
    return before + (now - before) / count, count


def _longest_s(shares: Shares, costs: Sequence[float]) -> float:
    return max(share * cost for share, cost in zip(shares, costs, strict=True))
