"""The batch that counts 1, by which all other batches are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable


class UsualBatch:
    """As large as the workers' first batches are on average.

    Weights near 1 keep narrow gradients in range. What workers have trained on is added up in these
    weights, so a run that resumes has to go on with the same one.
    """

    def __init__(self) -> None:
        self.count: float | None = None
        """Its samples or tokens; None before the first batch was weighed."""

    def weight_of(self, count: float, mean: Callable[[float], float]) -> float:
        """What a batch of so many samples or tokens counts. All workers call it.

        Args:
            count: Of this worker's batch.
            mean: Averages a number over the workers that have batches.

        """
        if not 0 <= count < math.inf:
            raise ValueError(f"a batch cannot count {count}; give its samples or tokens")
        if self.count is None:
            self.count = mean(float(count)) or 1.0
        return count / self.count
