"""An optimizer over exchanges: treats what the nodes moved together as a gradient."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class OuterOptimizer(Protocol):
    """What :meth:`Periodic.make_outer` returns: one for each flat tensor of parameters."""

    def step(self, mean: torch.Tensor) -> torch.Tensor:
        """The new agreed value, from the nodes' average; a tensor of its own."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs; the last agreed value is named ``anchor``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""


class OuterNesterov:
    """SGD with Nesterov momentum on the outer gradient (Douillard et al. 2023, "DiLoCo").

    With θ the last agreed value and g = θ - mean: v ← μ·v + g, θ ← θ - lr·(g + μ·v).
    Every worker keeps the same state and computes the same step.
    """

    def __init__(self, values: torch.Tensor, *, lr: float, momentum: float) -> None:
        self._anchor = values.clone()
        self._velocity = torch.zeros_like(values)
        self._lr = lr
        self._momentum = momentum

    @torch.no_grad()
    def step(self, mean: torch.Tensor) -> torch.Tensor:
        """The new agreed value, from the nodes' average; a copy."""
        gradient = self._anchor - mean
        self._velocity.mul_(self._momentum).add_(gradient)
        self._anchor.add_(gradient.add_(self._velocity, alpha=self._momentum), alpha=-self._lr)
        return self._anchor.clone()

    def state_dict(self) -> dict[str, Any]:
        """The agreed value and the velocity."""
        return {"anchor": self._anchor, "velocity": self._velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the agreed value and the velocity."""
        self._anchor.copy_(state["anchor"])
        self._velocity.copy_(state["velocity"])
