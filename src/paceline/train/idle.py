"""A pace that does nothing, so that one script trains with and without paceline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.train.pace import Pace
from paceline.train.stats import Stats


class IdlePace(Pace):
    """What ``attach(..., enabled=False)`` returns: no hooks, no communication."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.stats = Stats()
        self._is_accumulating = False
        self._model = model
        self._optimizer = optimizer

    def report(self, metric: float | torch.Tensor) -> None:
        """Nobody listens."""

    def finish(self) -> None:
        """There is only one worker."""

    def _fail(self, error: BaseException) -> None:
        """Nobody waits."""

    def detach(self) -> None:
        """Nothing was attached."""

    def state_dict(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state."""

    def save(self, folder: str | Path) -> None:
        """Write model and optimizer."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, target / "worker-0.pt")

    def load(self, folder: str | Path) -> None:
        """Read model and optimizer."""
        state = torch.load(Path(folder, "worker-0.pt"), weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
