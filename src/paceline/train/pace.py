"""A strategy bound to a model and its optimizer. The training loop stays the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from paceline.strategies import Replica, Strategy
from paceline.strategies.replica import BufferMode
from paceline.teams import Pending, Workers
from paceline.train.buckets import Buckets
from paceline.train.monitor import Monitor
from paceline.train.stats import Stats, StepTimes
from paceline.train.tracer import Tracer

_CHECKPOINT_VERSION = 1


class Pace:
    """What :func:`paceline.attach` returns; also a context manager that finishes and detaches."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
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
        self._owns_workers = owns_workers
        self.stats = Stats()
        self._model = model
        self._optimizer = optimizer
        self._metric = metric
        self._report_every = report_every
        self._monitor = monitor
        self._tracer = tracer
        self._is_accumulating = False
        self._is_backward_open = False
        self._awaits_step = False
        self._was_step_skipped = False
        self._is_finished = False
        replica = Replica(model, buffers=buffers)
        make_equal(model, workers)
        strategy.start(replica, workers)
        self._buckets = Buckets(replica.parameters, strategy.bucket_ready)
        if tracer is not None:
            tracer.start(workers)
        self._step_start_s = workers.clock()
        self._counted = (strategy.waiting_s, strategy.merging_s)
        self._handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in replica.parameters
        ]
        self._handles.append(optimizer.register_step_post_hook(self._on_step))
        self._handles.append(model.register_forward_pre_hook(self._before_forward))

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
            self._fail(error)
        self.detach()

    def _fail(self, error: BaseException) -> None:
        self.workers.watch.fail(error)

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes in here only add up gradients; the first one after it exchanges them."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    def report(self, metric: float | torch.Tensor) -> None:
        """Tell the strategy how training goes (a loss: lower is better). All workers call it.

        The workers' values are averaged, so that all of them decide alike.
        """
        self._count_skipped_step()
        agreed = self.workers.world.agree(float(metric), "mean")
        self.strategy.report(agreed)
        self._monitor.log(self.strategy.step, {"metric": agreed})

    def finish(self) -> None:
        """End the training: all workers get the same parameters and buffers, bit for bit.

        Called when the context ends. Call it before evaluating or saving the final model, or use
        it again after more steps.
        """
        if self._awaits_step:
            self._finish_step()
        if not self._is_finished:
            self.workers.watch.meet("finish()")
            self._finish_training()
            self._is_finished = True
        self._monitor.flush()

    def _finish_training(self) -> None:
        if self._tracer is None:
            self.strategy.finish()
            return
        self._tracer.close()
        # An exchange that is still under way ends in here, and its span with it.
        self.strategy.finish()
        self._tracer.write(
            self.workers,
            title=f"{type(self.strategy).__name__} on {self.workers.world.size} workers, measured",
        )

    def detach(self) -> None:
        """Remove all hooks; model and optimizer are as before, and so is the class of both.

        The workers that ``attach`` found are closed; those it was given stay open.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for bucket in self._buckets.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    parameter.grad = view.clone()
        self._monitor.close()
        if self._owns_workers:
            self.workers.close()

    def state_dict(self) -> dict[str, Any]:
        """The strategy's whole state on this worker, with what is under way (which it waits for).

        Nodes differ between exchanges, so every worker saves its own; see :meth:`save`.
        """
        self._count_skipped_step()
        return {
            "version": _CHECKPOINT_VERSION,
            "strategy": type(self.strategy).__name__,
            "state": self.strategy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        own = type(self.strategy).__name__
        if state.get("version") != _CHECKPOINT_VERSION or state.get("strategy") != own:
            raise ValueError(
                f"the checkpoint holds {state.get('strategy')} (version {state.get('version')}), "
                f"and {own} (version {_CHECKPOINT_VERSION}) is attached"
            )
        self.strategy.load_state_dict(state["state"])
        self._is_finished = False

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and strategy of every worker to ``folder``. All call it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        checkpoint = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "pace": self.state_dict(),
        }
        torch.save(checkpoint, target / f"worker-{self.workers.world.rank}.pt")
        self.workers.world.agree(1.0, "min")

    def load(self, folder: str | Path) -> None:
        """Read what :meth:`save` wrote, on as many workers. All call it."""
        path = Path(folder, f"worker-{self.workers.world.rank}.pt")
        if not path.exists():
            raise ValueError(
                f"there is no checkpoint {path}; a run is resumed with as many workers as saved it"
            )
        checkpoint = torch.load(path, map_location=self.strategy.replica.device, weights_only=True)
        self._model.load_state_dict(checkpoint["model"])
        self._optimizer.load_state_dict(checkpoint["optimizer"])
        self.load_state_dict(checkpoint["pace"])

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._is_accumulating:
            return
        assert isinstance(parameter, nn.Parameter)
        if not self._is_backward_open:
            self._is_backward_open = True
            self._enter("backward")
            self._was_step_skipped = self._awaits_step and self._buckets.are_spent(
                arrived=parameter
            )
            # Runs when this backward pass ends: clipping and unscaling, which come next, must see
            # the exchanged gradients.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._after_backward)
        self._buckets.gradient_ready(parameter)

    @torch.no_grad()
    def _after_backward(self) -> None:
        self._is_backward_open = False
        self._buckets.complete(self._wait)
        if self._was_step_skipped:
            self._finish_step()
        self.strategy.gradients_ready()
        self._awaits_step = True
        self._enter("optimizer")

    def _wait(self, pending: Pending) -> None:
        self.strategy.wait(pending)

    def _on_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._awaits_step:
            self._finish_step()

    def _before_forward(self, _model: nn.Module, _args: Any) -> None:
        # In a compiled model this would break the graph; there the backward pass looks after it.
        if torch.compiler.is_compiling():
            return
        if not self._is_accumulating and torch.is_grad_enabled():
            self._count_skipped_step()

    def _count_skipped_step(self) -> None:
        # A GradScaler skips the optimizer's step where it meets infinities, on this node perhaps
        # and not on others. The step counts all the same, or the nodes would lose count. Other
        # gradients are still waiting: for a second backward pass, or for the step.
        if self._awaits_step and self._buckets.are_spent():
            self._finish_step()

    @torch.no_grad()
    def _finish_step(self) -> None:
        self._awaits_step = False
        self._is_finished = False
        self._enter("merge")
        self.strategy.after_step()
        self._count_step()
        if self._metric is not None and self.strategy.step % self._report_every == 0:
            self.report(self._metric())

    def _enter(self, phase: str) -> None:
        if self._tracer is not None:
            self._tracer.enter(phase)

    def _count_step(self) -> None:
        now_s = self.workers.clock()
        waited_s, merged_s = self.strategy.waiting_s, self.strategy.merging_s
        times = StepTimes(
            total_s=now_s - self._step_start_s,
            waiting_s=waited_s - self._counted[0],
            merging_s=merged_s - self._counted[1],
        )
        self._step_start_s, self._counted = now_s, (waited_s, merged_s)
        self.stats.steps.append(times)
        self.workers.watch.at_step(self.strategy.step)
        if self._tracer is not None:
            self._tracer.end_step(self.stats.num_steps)
        self.stats.status = self.strategy.status()
        workers = self.workers
        self.stats.bytes_by_team = {
            "world": workers.world.bytes_handed,
            "node": workers.node.bytes_handed + workers.background.node.bytes_handed,
            "across": workers.across.bytes_handed + workers.background.across.bytes_handed,
        }
        self._monitor.log(
            self.strategy.step,
            {
                "step_s": times.total_s,
                "compute_s": times.compute_s,
                "waiting_s": times.waiting_s,
                "merging_s": times.merging_s,
                **self.stats.status,
            },
        )


@torch.no_grad()
def make_equal(model: nn.Module, workers: Workers) -> None:
    """Give all workers the parameters and buffers of the first."""
    if workers.world.size == 1:
        return
    tensors = [*model.parameters(), *model.buffers()]
    for pending in [workers.world.broadcast(tensor.detach(), 0) for tensor in tensors]:
        pending.wait()
