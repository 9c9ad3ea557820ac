"""SlowMo: local SGD whose averages feed a slow momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.cluster.record import Count, Positive, Share
from paceline.strategies.periodic import Periodic, Weighting
from paceline.strategies.wire import WireName


class SlowMomentum:
    """Heavy-ball momentum over averages (Wang et al. 2020, "SlowMo", algorithm 1).

    With θ the last agreed value and γ the inner learning rate: u ← β·u + (θ - mean)/γ,
    θ ← θ - α·γ·u. Kept here is v = γ·u, which changes with γ.
    """

    def __init__(
        self,
        values: torch.Tensor,
        *,
        lr: float,
        momentum: float,
        learning_rate: Callable[[], float],
    ) -> None:
        self._anchor = values.clone()
        self._velocity = torch.zeros_like(values)
        self._lr = lr
        self._momentum = momentum
        self._learning_rate = learning_rate
        self._last_rate = learning_rate()

    @torch.no_grad()
    def step(self, mean: torch.Tensor) -> torch.Tensor:
        """The new agreed value, from the nodes' average; a copy."""
        rate = self._learning_rate()
        factor = self._momentum * (rate / self._last_rate if self._last_rate else 1.0)
        self._last_rate = rate
        self._velocity.mul_(factor).add_(self._anchor).sub_(mean)
        self._anchor.add_(self._velocity, alpha=-self._lr)
        return self._anchor.clone()

    def state_dict(self) -> dict[str, Any]:
        """The agreed value, the velocity, and the learning rate that it was scaled by."""
        return {"anchor": self._anchor, "velocity": self._velocity, "last_rate": self._last_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._anchor.copy_(state["anchor"])
        self._velocity.copy_(state["velocity"])
        self._last_rate = state["last_rate"]


class SlowMo(Periodic):
    """Every ``period`` steps a slow momentum step from the nodes' average (Wang et al. 2020).

    Args:
        period: Steps from one average to the next.
        slow_lr: How far the slow momentum moves the parameters; the paper's α.
        slow_momentum: The share of the slow momentum that is kept; the paper's β.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "average the nodes' parameters every few steps, with a slow momentum"

    def __init__(
        self,
        *,
        period: Count = 8,
        slow_lr: Positive = 1.0,
        slow_momentum: Share = 0.5,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        self.period = period
        self._slow_lr = slow_lr
        self._slow_momentum = slow_momentum

    def make_outer(self, values: torch.Tensor) -> SlowMomentum:
        """Momentum over averages, in units of the inner learning rate."""
        return SlowMomentum(
            values,
            lr=self._slow_lr,
            momentum=self._slow_momentum,
            learning_rate=lambda: self.replica.learning_rate,
        )
