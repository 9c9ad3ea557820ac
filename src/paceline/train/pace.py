"""A strategy bound to a model and its optimizers. The training loop stays the user's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from paceline.strategies import Replica, Strategy
from paceline.strategies.equality import find_unequal, make_equal, take_over
from paceline.strategies.replica import BufferMode
from paceline.teams import Pending, Workers
from paceline.traces.tracer import Tracer
from paceline.train import guard
from paceline.train import optimizer_state as states
from paceline.train.buckets import Buckets
from paceline.train.checkpoint import load_checkpoint, save_checkpoint
from paceline.train.contents import Contents, load_strategy_state, strategy_state
from paceline.train.fingerprint import check_agreement, fingerprint
from paceline.train.joining import Joining, Moment
from paceline.train.monitor import Monitor
from paceline.train.optimizer_steps import OptimizerSteps
from paceline.train.stats import Stats, StepTimes


class Pace:
    """What :func:`paceline.attach` returns; also a context manager that finishes and detaches."""

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
        self._owns_workers = owns_workers
        self.stats = Stats()
        self._model = model
        self._optimizers = list(optimizers)
        self._metric = metric
        self._report_every = report_every
        self._monitor = monitor
        self._tracer = tracer
        self._joining: Joining | None = None
        self._is_accumulating = False
        self._is_backward_open = False
        self._has_local_gradients = False
        self._awaits_step = False
        self._was_step_broken = False
        self._is_finished = False
        self._is_first_backward = True
        settings = {
            "buffers": buffers,
            "report_every": report_every if metric else None,
            "trace": tracer is not None,
        }
        check_agreement(fingerprint(model, optimizers, strategy, settings), workers)
        self._replica = Replica(model, buffers=buffers, optimizers=optimizers)
        take_over([*model.parameters(), *model.buffers()], workers.world, 0)
        self._level_optimizers()
        strategy.start(self._replica, workers)
        self._handles: list[RemovableHandle] = []
        self._hook_parameters()
        self._wrap_guard = guard.WrapGuard(model)
        self._steps = OptimizerSteps(
            optimizers,
            is_ours=self._trains_ours,
            before=self._before_step,
            after=self._finish_step,
        )
        if tracer is not None:
            tracer.start(workers)
        self._step_start_s = workers.clock()
        self._counted = (strategy.waiting_s, strategy.merging_s)

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

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Let workers have unequal numbers of batches: put the whole loop of an epoch in here.

        A worker that has run out of batches stands by: it takes part in what the others exchange,
        with nothing of its own, until all have run out. Gradients are averaged over the workers
        that have data. All workers then go on from the parameters, and the optimizer's state, of
        those that trained the longest (in each node, where nodes differ).

        Each step costs a few small messages among all workers, so use it only where it is needed.
        """
        if self._joining is not None:
            raise ValueError("join() cannot be used inside join()")
        self._joining = joining = Joining(self.workers)
        try:
            yield
            self._steps.close_round()
            while (moment := joining.tell(None)) is not None:
                self._stand_by(moment)
        finally:
            self._joining = None
        self._level_after(joining)

    def skip_step(self, optimizer: Optimizer | None = None) -> None:
        """Say that this step is left out: ``optimizer.step()`` will not be called.

        A step counts on all nodes or on none, so a node that leaves one out on its own must say so.
        What ``torch.amp.GradScaler`` leaves out is noticed without this.

        Args:
            optimizer: Which of several optimizers would have stepped; by default the first.

        """
        self._steps.skip(self._optimizers[0] if optimizer is None else optimizer)

    def report(self, metric: float | torch.Tensor) -> None:
        """Tell the strategy how training goes (a loss: lower is better). All workers call it.

        The workers' values are averaged, so that all of them decide alike.
        """
        self._count_broken_step()
        self._tell("report")
        self._report(float(metric))

    def finish(self, *, optimizer_state: bool = False) -> None:
        """End the training: all workers get the same parameters and buffers, bit for bit.

        Called when the context ends. Call it before evaluating or saving the final model, or use
        it again after more steps.

        Args:
            optimizer_state: Also give all workers the same optimizer state, the average of theirs:
                nodes that train on their own have different momenta.

        """
        self._refuse_inside_join("finish()")
        self._steps.close_round()
        self._count_broken_step(are_dropped=False)
        self.workers.watch.meet("finish()")
        if not self._is_finished:
            self._finish_training()
            self._is_finished = True
        self._make_sure_all_are_equal()
        if optimizer_state:
            states.average(self._optimizers, self.workers.world)
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

    def _make_sure_all_are_equal(self) -> None:
        """What a loop does behind our back may leave workers different; none of them is right."""
        tensors = self._replica.tensors()
        unequal = find_unequal(tensors, self.workers.world)
        if not unequal:
            return
        make_equal({name: tensors[name] for name in unequal}, self.workers.world)
        more = f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
        warnings.warn(
            f"workers differed in {unequal[0]}{more} at the end and were given their average; "
            "usual reasons: parameters changed outside optimizer.step(), workers with different "
            "learning rates or optimizer states, dropout or data that an optimizer's closure uses",
            RuntimeWarning,
            stacklevel=3,
        )

    def detach(self) -> None:
        """Remove all hooks; model and optimizer are as before, and so is the class of both.

        The workers that ``attach`` found are closed; those it was given stay open.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._steps.close()
        self._wrap_guard.remove()
        guard.release(self.strategy)
        self._buckets.release()
        self._monitor.close()
        if self._owns_workers:
            self.workers.close()

    def state_dict(self) -> dict[str, Any]:
        """The strategy's whole state on this worker, with what is under way (which it waits for).

        Nodes differ between exchanges, so every worker saves its own; see :meth:`save`.
        """
        self._steps.close_round()
        self._count_broken_step()
        return strategy_state(self.strategy)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        load_strategy_state(self.strategy, state)
        self._is_finished = False

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and strategy of every worker to ``folder``. All call it.

        The save before stays there until this one is complete. If a worker fails, all raise a
        :class:`CheckpointError` that names it.
        """
        self._refuse_inside_join("save()")
        self._steps.close_round()
        self._count_broken_step()
        save_checkpoint(folder, self._contents())

    def load(self, folder: str | Path, *, missing_ok: bool = False) -> None:
        """Read the newest complete save in ``folder``, on the same layout. All call it.

        If the workers were all equal (``sync``), any layout will do. If a worker fails, all raise
        a :class:`CheckpointError` that names it. With ``missing_ok`` nothing happens where there is
        no complete save yet.
        """
        load_checkpoint(folder, self._contents(), missing_ok=missing_ok)
        self._is_finished = False

    def _contents(self) -> Contents:
        return Contents(
            model=self._model,
            optimizers=self._optimizers,
            strategy=self.strategy,
            workers=self.workers,
        )

    def _hook_parameters(self) -> None:
        parameters = self._replica.parameters
        self._buckets = Buckets(parameters, self.strategy.bucket_ready)
        self._known = set(parameters)
        self._handles += [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in parameters
        ]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._is_accumulating:
            self._has_local_gradients = True
            return
        assert isinstance(parameter, nn.Parameter)
        if not self._is_backward_open:
            self._open_backward()
        self._buckets.gradient_ready(parameter)

    def _open_backward(self) -> None:
        if self._is_first_backward:
            # Who wrapped the model after it was attached has done so by now.
            guard.check_not_wrapped(self._replica.parameters)
            self._is_first_backward = False
        self._is_backward_open = True
        self._enter("backward")
        self._was_step_broken = self._is_step_broken()
        self._tell("backward")
        # Runs when this backward pass ends: clipping and unscaling, which come next, must see the
        # exchanged gradients.
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._after_backward)

    @torch.no_grad()
    def _after_backward(self) -> None:
        self._is_backward_open = False
        self._complete_gradients()

    def _complete_gradients(self) -> None:
        are_all_active = self._joining is None or self._joining.are_all_active
        self._buckets.complete(self._wait, are_all_active=are_all_active)
        self._has_local_gradients = False
        if self._was_step_broken:
            self._finish_step()
        self.strategy.gradients_ready()
        self._awaits_step = True
        self._enter("optimizer")

    def _wait(self, pending: Pending) -> None:
        self.strategy.wait(pending)

    def _trains_ours(self, optimizer: Optimizer) -> bool:
        if any(p in self._known for group in optimizer.param_groups for p in group["params"]):
            return True
        # Perhaps the model has others by now.
        return not self._replica.is_current() and not guard.foreign_parameters(
            [optimizer], set(self._model.parameters())
        )

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer) -> None:
        """Take in new parameters, and gradients that no backward pass of ours has exchanged."""
        if not self._replica.is_current() or guard.foreign_parameters([optimizer], self._known):
            self._adopt(optimizer)
        if self._has_local_gradients or not self._buckets.are_in_place():
            self._was_step_broken = False
            self._tell("backward")
            self._complete_gradients()

    def _adopt(self, optimizer: Optimizer) -> None:
        """Go on with the parameters that the model has now: unfrozen, added or replaced ones."""
        self._refuse_inside_join("changing the model's parameters")
        guard.check_optimizers(self._model, [optimizer])
        before = set(self._replica.parameters)
        self.strategy.finish()
        self._replica.refresh()
        new = [p for p in self._replica.parameters if p not in before]
        guard.extend_claim(new, self.strategy)
        take_over(new, self.workers.world, 0)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hook_parameters()
        self._steps.expect(optimizer)
        self.strategy.parameters_changed()

    def _is_step_broken(self, *, are_dropped: bool = True) -> bool:
        """Whether gradients that were not finite were dropped without a step: it counts as one.

        A GradScaler tells by itself; who looks at the gradients by hand had better say so with
        :meth:`skip_step`, which also knows of gradients that are finite.
        """
        return (
            self._awaits_step
            and not self._steps.has_scaler
            and not self._steps.is_inside_step
            and self._buckets.were_broken(are_dropped=are_dropped)
        )

    def _count_broken_step(self, *, are_dropped: bool = True) -> None:
        if self._is_step_broken(are_dropped=are_dropped):
            self._finish_step()

    @torch.no_grad()
    def _finish_step(self) -> None:
        self._tell("step")
        self._end_step()

    def _end_step(self) -> None:
        self._awaits_step = False
        self._is_finished = False
        self._enter("merge")
        self._share_in_node()
        self.strategy.after_step()
        self._count_step()
        if self._metric is not None and self.strategy.step % self._report_every == 0:
            self._report(self._metric() if self._is_active else 0.0)

    @property
    def _is_active(self) -> bool:
        return self._joining is None or self.workers.world.rank in self._joining.active

    def _report(self, metric: float) -> None:
        if self._joining is None or self._joining.are_all_active:
            agreed = self.workers.world.agree(metric, "mean")
        else:
            total = self.workers.world.agree(metric, "sum")
            agreed = total / len(self._joining.active)
        self.strategy.report(agreed)
        self._monitor.log(self.strategy.step, {"metric": agreed})

    def _tell(self, moment: Moment) -> None:
        if self._joining is not None:
            self._joining.tell(moment)

    @torch.no_grad()
    def _stand_by(self, moment: Moment) -> None:
        """Take part in what the others do, with nothing of one's own."""
        if moment == "backward":
            self._buckets.stand_by(self._wait)
            self.strategy.gradients_ready()
        elif moment == "step":
            self._end_step()
        else:
            self._report(0.0)

    def _share_in_node(self) -> None:
        """Keep who stands by at its node's parameters: it may have to carry the next exchange."""
        if self._joining is None or self.strategy.lockstep() is None:
            return
        ranks = self.workers.ranks_by_node[self.workers.node_index]
        active = [place for place, rank in enumerate(ranks) if rank in self._joining.active]
        if 0 < len(active) < len(ranks):
            take_over(self._replica.tensors().values(), self.workers.node, active[0])

    def _level_after(self, joining: Joining) -> None:
        """All workers that go in step go on from who had data the longest."""
        team = self.strategy.lockstep()
        if team is None:
            return
        is_world = team is self.workers.world
        ranks = (
            range(team.size) if is_world else self.workers.ranks_by_node[self.workers.node_index]
        )
        source = joining.last_of(list(ranks))
        if source is None:
            return
        take_over(self._replica.tensors().values(), team, source)
        if not states.have_same_settings(self._optimizers, team):
            warnings.warn(
                "workers that ran out of batches were given the others' learning rate; a "
                "scheduler that is stepped for every batch is behind there, and had better be "
                "stepped for every epoch",
                RuntimeWarning,
                stacklevel=4,
            )
            states.take_over(self._optimizers, team, source, with_settings=True)
        elif not states.is_equal(self._optimizers, team):
            states.take_over(self._optimizers, team, source)

    def _level_optimizers(self) -> None:
        """Optimizers that have learnt different things would take workers apart again."""
        world = self.workers.world
        if states.is_equal(self._optimizers, world):
            return
        states.take_over(self._optimizers, world, 0)
        warnings.warn(
            "the workers' optimizers had different states (as nodes have after training on their "
            "own) and were given the first worker's; finish(optimizer_state=True) averages them",
            RuntimeWarning,
            stacklevel=4,
        )

    def _refuse_inside_join(self, what: str) -> None:
        if self._joining is not None:
            raise ValueError(
                f"{what} is not possible inside join(), where some workers only stand by; do it "
                "before or after"
            )

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
