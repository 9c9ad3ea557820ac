"""Batches in proportion to speed, for clusters whose nodes differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from paceline.cluster import Cluster, Node, load_host
from paceline.kernels.model import KernelModel
from paceline.rehearse.cache import known_of
from paceline.rehearse.compute import compute_cost
from paceline.rehearse.rehearsal import has_same_calls
from paceline.rehearse.rules import distinct_nodes
from paceline.steps import Capture, Step
from paceline.steps.batches import resized

_ROUNDS = 4
_CLOSE = 0.02
"""Kinds of node whose times differ by no more than this are balanced."""


class _Kind:
    """The workers of one kind of node: what they take by batch, where it was asked."""

    def __init__(self, node: Node, num_workers: int, model: KernelModel) -> None:
        self.node = node
        self.num_workers = num_workers
        self._model = model
        self._seconds: dict[int, float] = {}
        self._most: float = float("inf")

    def ask(self, capture: Capture) -> float:
        """Seconds of a batch; notes what memory says about larger ones."""
        host = load_host(self.node.host)
        cost = compute_cost(capture, self._model, slowdown=self.node.slowdown, host=host)
        self._seconds[capture.batch] = cost.timeline.step_s
        limit_bytes = self._model.device.memory_bytes
        if cost.memory_bytes > limit_bytes:
            # Memory grows less than in proportion to the batch, so this batch is small enough.
            self._most = min(self._most, max(1, capture.batch * limit_bytes // cost.memory_bytes))
        return self._seconds[capture.batch]

    def seconds(self, batch: float) -> float:
        """Between what was asked for, on a line; beyond it, on the line through the nearest two."""
        known = sorted(self._seconds.items())
        if len(known) == 1:
            return known[0][1] * batch / known[0][0]
        place = min(max(1, bisect_left([size for size, _ in known], batch)), len(known) - 1)
        (low, low_s), (high, high_s) = known[place - 1], known[place]
        slope = max((high_s - low_s) / (high - low), 1e-12)
        return max(low_s + slope * (batch - low), 1e-12)

    def batch_in(self, seconds: float) -> float:
        """The largest batch that takes no longer than this."""
        low, high = 0.0, 2.0 * max(self._seconds)
        while self.seconds(high) < seconds and high < self._most:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.seconds(middle) <= seconds else (low, middle)
        return min(low, self._most)


def balanced_captures(
    step: Step, cluster: Cluster, models: Mapping[str, KernelModel], *, global_batch: int
) -> dict[Node, Capture]:
    """The step with each kind of node's batch, such that all kinds take about the same time.

    Args:
        step: The step with any batch.
        cluster: The cluster.
        models: The kernel model of each device, by its name.
        global_batch: What the batches of all workers add up to, but for rounding.

    """
    own = known_of(step).capture
    captures = {own.batch: own}
    kinds = [
        _Kind(node, count * node.workers_per_node, models[node.device.name])
        for node, count in distinct_nodes(cluster)
    ]
    batches = dict.fromkeys(kinds, max(1, round(global_batch / cluster.num_workers)))
    best: tuple[float, dict[_Kind, int]] | None = None
    for _ in range(_ROUNDS):
        times = []
        for kind, batch in batches.items():
            if batch not in captures:
                captures[batch] = known_of(resized(step, batch)).capture
            if not has_same_calls(captures[batch], own):
                raise ValueError(
                    f"{step.title} does other things with a batch of {batch} than of {own.batch}: "
                    "balanced shares cannot be predicted."
                )
            times.append(kind.ask(captures[batch]))
        longest = max(times) / sum(kind.num_workers * b for kind, b in batches.items())
        if best is None or longest < best[0]:
            best = (longest, dict(batches))
        if max(times) <= (1 + _CLOSE) * min(times):
            break
        batches = _solve(kinds, global_batch)
    assert best is not None
    return {kind.node: captures[batch] for kind, batch in best[1].items()}


def _solve(kinds: list[_Kind], total: int) -> dict[_Kind, int]:
    """Batches that add up to the total and take the same time, as far as that is known."""
    low, high = 0.0, max(kind.seconds(total) for kind in kinds)
    for _ in range(60):
        middle = (low + high) / 2
        is_enough = sum(kind.num_workers * kind.batch_in(middle) for kind in kinds) >= total
        low, high = (low, middle) if is_enough else (middle, high)
    return {kind: max(1, round(kind.batch_in(high))) for kind in kinds}
