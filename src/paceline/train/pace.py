"""A strategy bound to a model and its optimizers. The training loop stays the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Replica, Strategy
from paceline.strategies.equality import take_over
from paceline.strategies.replica import BufferMode
from paceline.teams import Workers
from paceline.traces.tracer import Tracer
from paceline.train import guard
from paceline.train import optimizer_state as states
from paceline.train.checkpoint import load_checkpoint, save_checkpoint
from paceline.train.contents import Contents, load_strategy_state, strategy_state
from paceline.train.fingerprint import check_agreement, fingerprint
from paceline.train.levelling import level_models, level_optimizers
from paceline.train.loop import Loop
from paceline.train.meter import Meter
from paceline.train.monitor import Monitor
from paceline.train.stats import Stats


class Pace:
    """What :func:`paceline.attach` returns; also a context manager that finishes and detaches.

    Attributes:
        strategy: The strategy that trains.
        workers: The workers of the job.
        stats: Where the time goes, and what is communicated.

    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        strategy: Strategy,
        workers: Workers,
        *,
        buffers: BufferMode,
        metric: Callable[[], float] | None,
        report_every: int,
        monitor: Monitor,
        tracer: Tracer | None,
        owns_workers: bool = False,
    ) -> None:
        self.strategy = strategy
        self.workers = workers
        self._model = model
        self._optimizers = list(optimizers)
        self._owns_workers = owns_workers
        settings = {
            "buffers": buffers,
            "report_every": report_every if metric else None,
            "trace": tracer is not None,
        }
        self._replica = Replica(model, buffers=buffers, optimizers=optimizers)
        described = fingerprint(model, optimizers, strategy, settings)
        check_agreement(described, workers, self._replica.device)
        take_over([*model.parameters(), *model.buffers()], workers.world, 0)
        level_optimizers(self._optimizers, workers.world)
        strategy.start(self._replica, workers)
        self._meter = Meter(strategy, workers, monitor=monitor, tracer=tracer)
        self._loop = Loop(
            model,
            self._optimizers,
            strategy,
            self._meter,
            metric=metric,
            report_every=report_every,
        )
        self._meter.start()

    @property
    def stats(self) -> Stats:
        """Where the time of the run goes, as this worker sees it."""
        return self._meter.stats

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error the other workers may be gone; nothing is exchanged any more.
        if error is None:
            self.finish()
        else:
            self.workers.watch.fail(error)
        self.detach()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only add up gradients, as under DDP's ``no_sync()``.

        The first backward pass after it, or the optimizer's step, exchanges the sum.
        """
        return self._loop.gradients.kept_local()

    def accumulate(self) -> AbstractContextManager[None]:
        """Another name for :meth:`no_sync`."""
        return self.no_sync()

    def join(self) -> AbstractContextManager[None]:
        """Let workers have unequal numbers of batches: put the whole loop of an epoch in here.

        A worker that has run out of batches stands by: it takes part in what the others exchange,
        with nothing of its own, until all have run out. Gradients are averaged over the workers
        that have data. All workers then go on from the parameters, and the optimizer's state, of
        those that trained the longest (in each node, where nodes differ).

        Each step costs a few small messages among all workers, so use it only where it is needed.
        """
        return self._loop.join()

    def skip_step(self, optimizer: Optimizer | None = None) -> None:
        """Say that this step is left out: ``optimizer.step()`` will not be called.

        A step counts on all nodes or on none, so a node that leaves one out on its own must say so.
        Steps that ``torch.amp.GradScaler`` leaves out are noticed without this.

        Args:
            optimizer: Which of several optimizers would have stepped; by default the first.

        """
        self._loop.skip_step(optimizer)

    def report(self, metric: float | torch.Tensor) -> None:
        """Tell the strategy how training goes. All workers call it.

        The workers' values are averaged, so that all of them make the same decision.

        Args:
            metric: A loss, or anything else of which lower is better.

        """
        self._loop.report(float(metric))

    def finish(self, *, optimizer_state: bool = False) -> None:
        """End the training: all workers get the same parameters and buffers, bit for bit.

        Called when the context ends. Call it before evaluating or saving the final model, or use
        it again after more steps.

        Args:
            optimizer_state: Also give all workers the same optimizer state, the average of theirs:
                nodes that train on their own have different momenta.

        """
        self._loop.refuse_inside_join("finish()")
        self._loop.close_step(are_dropped=False)
        self.workers.watch.meet("finish()")
        if not self._loop.is_finished:
            self._meter.finish()
            self._loop.is_finished = True
        level_models(self._replica, self.workers.world)
        if optimizer_state:
            states.average(self._optimizers, self.workers.world)
        self._meter.flush()

    def detach(self) -> None:
        """Remove all hooks; model and optimizer are as before, and so is the class of both.

        The workers that ``attach`` found are closed; those it was given stay open.
        """
        self._loop.detach()
        guard.release(self.strategy)
        self._meter.close()
        if self._owns_workers:
            self.workers.close()

    def state_dict(self) -> dict[str, Any]:
        """The strategy's whole state on this worker, with what is under way (which it waits for).

        Nodes differ between exchanges, so every worker saves its own; see :meth:`save`.
        """
        self._loop.close_step()
        return strategy_state(self.strategy)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the strategy's state.

        Args:
            state: What :meth:`state_dict` returned on this worker.

        """
        load_strategy_state(self.strategy, state)
        self._loop.is_finished = False

    def save(self, folder: str | Path) -> None:
        """Write model, optimizers and strategy of every worker to ``folder``. All workers call it.

        The save before stays there until this one is complete. If a worker fails, all raise a
        :class:`CheckpointError` that names it.

        Args:
            folder: Where to write: on a disk that all workers share, or each node's own.

        """
        self._loop.refuse_inside_join("save()")
        self._loop.close_step()
        save_checkpoint(folder, self._contents())

    def load(self, folder: str | Path, *, missing_ok: bool = False) -> None:
        """Read the newest complete save in ``folder``, on the same layout. All workers call it.

        If the workers were all equal (``sync``), any layout will do. If a worker fails, all raise
        a :class:`CheckpointError` that names it.

        Args:
            folder: What :meth:`save` was given.
            missing_ok: Whether to do nothing where there is no complete save yet.

        """
        load_checkpoint(folder, self._contents(), missing_ok=missing_ok)
        self._loop.is_finished = False

    def _contents(self) -> Contents:
        return Contents(
            model=self._model,
            optimizers=self._optimizers,
            workers=self.workers,
            strategy=self.strategy,
        )
