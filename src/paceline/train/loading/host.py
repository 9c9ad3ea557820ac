"""What a loader needs of the training that it feeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.teams import Workers


@dataclass(frozen=True, kw_only=True)
class Host:
    """The training, as a loader sees it."""

    workers: Workers
    model: nn.Module
    take: Callable[[object, float | None], None]
    """A pass takes a batch; what it counts beside an equal part of a full one; None: all do."""
    leave: Callable[[object], None]
    """A pass ends."""
    waited_s: Callable[[], float]
    """Seconds that were spent waiting for others so far."""
    is_in_lockstep: Callable[[], bool]
    """Whether all workers meet at every step anyway."""
    when_computed: list[Callable[[], None]] = field(default_factory=list)
    """Called at the end of each backward pass, before anybody is waited for."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def least(self) -> int:
        """The smallest batch that the model can be trained on: batch norm needs two samples."""
        return 2 if any(isinstance(one, _BatchNorm) for one in self.model.modules()) else 1
