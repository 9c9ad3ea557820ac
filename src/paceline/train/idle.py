"""A pace that does nothing, so that one script trains with and without paceline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Strategy
from paceline.teams.solo import solo_workers
from paceline.train.contents import Contents
from paceline.train.loading.host import Host
from paceline.train.loading.loaders import Loaders
from paceline.train.objective import Interval, Objective, make_objective
from paceline.train.pace import Pace
from paceline.train.resumable import Resumable
from paceline.train.stats import Stats
from paceline.train.usual_batch import UsualBatch


class IdlePace(Pace):
    """What ``attach(..., enabled=False)`` returns: no hooks, no communication.

    ``workers`` is this worker alone, and ``strategy`` never starts.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], strategy: Strategy
    ) -> None:
        Resumable.__init__(self)
        self.strategy = strategy
        self.workers = solo_workers()
        self._stats = Stats()
        self._model = model
        self._optimizers = list(optimizers)
        self._loaders = Loaders()

    @property
    def stats(self) -> Stats:
        """Nothing is counted."""
        return self._stats

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients are never exchanged."""
        return contextlib.nullcontext()

    def join(self) -> AbstractContextManager[None]:
        """There is nobody to wait for."""
        return contextlib.nullcontext()

    def objective(
        self,
        loss_fn: Callable[..., torch.Tensor],
        data: Any,
        *,
        interval: Interval = "epoch",
        batch_size: int | None = None,
    ) -> Objective:
        """The loss over this worker's samples."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]

        def give(gradients: Sequence[torch.Tensor]) -> None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient

        return make_objective(
            loss_fn,
            data,
            interval=interval,
            batch_size=batch_size,
            parameters=parameters,
            world=self.workers.world,
            wait=lambda pending: pending.wait(),
            give=give,
            check=lambda: None,
        )

    def skip_step(self, optimizer: Optimizer | None = None) -> None:
        """Nobody counts."""

    def report(self, metric: float | torch.Tensor) -> None:
        """Nobody listens."""

    def finish(self, *, optimizer_state: bool = False) -> None:
        """There is only one worker; a save in the background is waited for."""
        self._saver.wait()

    def detach(self) -> None:
        """Nothing was attached; a save in the background is waited for."""
        self._saver.close(is_in_trouble=False)

    def state_dict(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state."""

    def _before_save(self) -> None:
        """No step is open."""

    def _returning(self) -> None:
        """Nobody is lost."""

    def _after_load(self) -> None:
        """Nothing was finished."""

    def _contents(self) -> Contents:
        return Contents(
            model=self._model,
            optimizers=self._optimizers,
            workers=self.workers,
            strategy=None,
            usual_batch=UsualBatch(),
            loaders=self._loaders,
            registered=self._registered,
        )

    def weigh(self, count: float) -> None:
        """There is nobody else's batch to weigh it against."""

    def _loader_host(self) -> Host:
        return Host(
            workers=self.workers,
            model=self._model,
            take=lambda _, __: None,
            leave=lambda _: None,
            waited_s=lambda: 0.0,
            is_in_lockstep=lambda: True,
        )
