"""The moments of a training loop, as hooks notice them, and what happens at each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Replica, Strategy
from paceline.strategies.equality import take_over
from paceline.teams import Team
from paceline.train import guard
from paceline.train.at_hand import AtHand
from paceline.train.gradients import Gradients
from paceline.train.joining import Joining, Moment
from paceline.train.meter import Meter
from paceline.train.objective import Objective
from paceline.train.optimizer_steps import Closure, OptimizerSteps
from paceline.train.returning import Returning
from paceline.train.sharding import refuse_shards
from paceline.train.skipped_steps import SkippedSteps
from paceline.train.usual_batch import UsualBatch


class Loop:
    """Follows a training loop and tells the strategy: backward passes, steps, reports."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        strategy: Strategy,
        meter: Meter,
        *,
        metric: Callable[[], float] | None,
        report_every: int,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._strategy = strategy
        self._replica: Replica = strategy.replica
        self._meter = meter
        self._metric = metric
        self._report_every = report_every
        self._joining: Joining | None = None
        self._is_first_backward = True
        self.when_computed: list[Callable[[], None]] = []
        """Called at the end of each backward pass, before anybody is waited for."""
        self.returning: Returning | None = None
        """Where nodes may be lost: how they come back."""
        self.usual_batch = UsualBatch()
        """By which batches that are not of a loader are weighed."""
        self.is_finished = False
        """Whether the strategy has finished, and no step was taken since."""
        self.gradients = Gradients(
            self._replica.parameters,
            exchange=strategy.bucket_ready,
            bucket_bytes=strategy.bucket_bytes,
            wait=strategy.wait,
            on_begin=self._begin_backward,
            on_end=self._complete_gradients,
        )
        self.at_hand = AtHand(model, weigh=self._weigh, rest=self._rest)
        """Batches that were taken, and what they count."""
        self._wrap_guard = guard.WrapGuard(model)
        self._steps = OptimizerSteps(
            optimizers,
            is_ours=self._trains_ours,
            before=self._before_step,
            complete=self._complete_left_over,
            after=self._finish_step,
            share=self._share_loss,
        )
        self._skipped = SkippedSteps(self.gradients, self._steps)

    def detach(self) -> None:
        """Follow the loop no longer, and leave nothing behind."""
        self.gradients.release()
        self._steps.close()
        self._wrap_guard.remove()

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Inside, a worker without batches stands by for those that have some."""
        refuse_shards(self.gradients.is_sharded, "join()", "give all workers as many batches")
        if self._joining is not None:
            raise ValueError("join() cannot be used inside join()")
        self._joining = joining = Joining(self._strategy, self._optimizers)
        try:
            yield
            self._steps.close_round()
            while (moment := joining.tell(None)) is not None:
                self._stand_by(moment)
        finally:
            self._joining = None
        joining.level()

    def skip_step(self, optimizer: Optimizer | None) -> None:
        """A step of this optimizer, by default the first one, is left out."""
        self._steps.skip(self._optimizers[0] if optimizer is None else optimizer)

    def take(self, owner: object, weight: float | None) -> None:
        """A batch is taken; what it counts beside a usual one; None: all workers have that."""
        refuse_shards(
            self.gradients.is_sharded,
            "a batch that counts more than others",
            "FSDP averages gradients inside the node alike, so give all workers equal batches",
        )
        self._note_use()
        self.at_hand.take(owner, weight)

    def weigh(self, count: float) -> None:
        """The next batch, of the user's own, has so many samples or tokens."""
        self.take(self, self.usual_batch.weight_of(count, self._mean_of_first))

    def _mean_of_first(self, count: float) -> float:
        self._tell("weigh")
        if self._joining is not None:
            return self._joining.mean(count)
        return self._strategy.workers.world.agree(count, "mean")

    def leave(self, owner: object) -> None:
        """A pass over a loader ends."""
        self._note_use()
        self.at_hand.leave(owner)

    def _weigh(self, weight: float | None, is_used: bool) -> None:
        self.gradients.weigh(weight, is_new=not is_used)
        self._replica.weight = weight

    def _rest(self) -> None:
        self.gradients.rest()
        self._replica.weight = None

    def _note_use(self) -> None:
        if self.gradients.is_batch_used:
            self.at_hand.note_use()

    def report(self, metric: float) -> None:
        """This worker reports a metric, as all do."""
        self._count_skipped_step()
        self._tell("report")
        self._report(metric)

    def close_step(self, *, are_dropped: bool = True) -> None:
        """Count what may still be open: a round of optimizers, a step that was left out."""
        self._steps.close_round()
        self._count_skipped_step(are_dropped=are_dropped)

    def refuse_inside_join(self, what: str) -> None:
        """Refuse what workers that stand by could not take part in."""
        if self._joining is not None:
            raise ValueError(
                f"{what} is not possible inside join(), where some workers only stand by; do it "
                "before or after"
            )

    def _begin_backward(self) -> None:
        if self._is_first_backward:
            # Who wrapped the model after it was attached has done so by now.
            guard.check_not_wrapped(self._replica.parameters)
            self._is_first_backward = False
        self._meter.enter("backward")
        self._skipped.look_back()
        self._tell("backward")

    def _complete_gradients(self) -> None:
        for call in self.when_computed:
            call()
        self._note_use()
        self.at_hand.check()
        self.at_hand.exchanged()
        self.at_hand.forget_unless_at_hand(self)  # weighed before, and by hand
        are_all_active = self._joining is None or self._joining.are_all_active
        self._replica.count_batch(self.gradients.complete(are_all_active=are_all_active))
        if self._skipped.was_left_out:
            self._finish_step()
        self._strategy.gradients_ready()
        self.gradients.buckets.take_in()
        self._skipped.gradients_exchanged()
        self._meter.enter("optimizer")

    def _trains_ours(self, optimizer: Optimizer) -> bool:
        known = self.gradients.known
        if any(p in known for group in optimizer.param_groups for p in group["params"]):
            return True
        # Perhaps the model has others by now.
        return not self._replica.is_current() and not guard.foreign_parameters(
            [optimizer], set(self._model.parameters())
        )

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer) -> None:
        """Take in new parameters."""
        known = self.gradients.known
        if not self._replica.is_current() or guard.foreign_parameters([optimizer], known):
            self._adopt(optimizer)

    @torch.no_grad()
    def _complete_left_over(self) -> None:
        """Take in gradients that no backward pass of ours has exchanged."""
        if not self.gradients.are_exchanged:
            self._skipped.was_left_out = False
            self._tell("backward")
            self._complete_gradients()

    def _share_loss(self, closure: Closure) -> Closure:
        """A closure whose loss is the mean over the workers that step alike, weighted."""
        refuse_shards(
            self.gradients.is_sharded,
            "an optimizer that decides by a closure's loss",
            "use SGD, AdamW or alike",
        )
        team = self._strategy.lockstep()
        if team is None or team.size == 1 or isinstance(closure, Objective):
            return closure
        self.refuse_inside_join("an optimizer with a closure")

        def shared() -> Any:
            loss = closure()
            if loss is None:
                return None
            own = float(loss.detach() if torch.is_tensor(loss) else loss)
            mean = _weighted_mean(team, own, self.gradients.last_weight)
            return loss.detach().new_tensor(mean) if torch.is_tensor(loss) else mean

        return shared

    def _adopt(self, optimizer: Optimizer) -> None:
        """Go on with the parameters that the model has now: unfrozen, added or replaced ones."""
        self.refuse_inside_join("changing the model's parameters")
        guard.check_optimizers(self._model, [optimizer])
        before = set(self._replica.parameters)
        self._strategy.finish()
        self._replica.refresh()
        new = [p for p in self._replica.parameters if p not in before]
        guard.extend_claim(new, self._strategy)
        take_over(new, self._strategy.workers.world, 0)
        self.gradients.hook(self._replica.parameters)
        self._steps.expect(optimizer)
        self._strategy.parameters_changed()

    def _count_skipped_step(self, *, are_dropped: bool = True) -> None:
        if self._skipped.is_left_out(are_dropped=are_dropped):
            self._finish_step()

    @torch.no_grad()
    def _finish_step(self) -> None:
        self._tell("step")
        self._end_step()

    def _end_step(self) -> None:
        self._skipped.step_ended()
        self.is_finished = False
        self._meter.enter("merge")
        if self._joining is not None:
            self._joining.share_in_node()
        self._react_to_step()
        self._meter.end_step()
        if self._metric is not None and self._strategy.step % self._report_every == 0:
            is_active = self._joining is None or self._joining.is_active
            self._report(self._metric() if is_active else 0.0)

    def _react_to_step(self) -> None:
        if self.returning is None:
            self._call_after_step()
        else:
            self.returning.count_step(self._call_after_step)

    def _call_after_step(self) -> None:
        before = self._strategy.step
        self._strategy.after_step()
        if self._strategy.step == before:
            raise ValueError(
                f"{type(self._strategy).__name__}.after_step() has not counted the step; call "
                "super().after_step() first"
            )

    def _report(self, metric: float) -> None:
        if self.returning is None:
            self._use_metric(metric)
        else:
            self.returning.between_steps(lambda: self._use_metric(metric))

    def _use_metric(self, metric: float) -> None:
        agreed = self._mean_of(metric)
        self._strategy.report(agreed)
        self._meter.log_metric(agreed)

    def _mean_of(self, metric: float) -> float:
        """The average over the workers, weighted as their batches are."""
        if self._joining is not None:
            return self._joining.mean(metric, self._replica.weight)
        return _weighted_mean(self._strategy.workers.world, metric, self._replica.weight)

    def _tell(self, moment: Moment) -> None:
        if self._joining is not None:
            self._joining.tell(moment)

    @torch.no_grad()
    def _stand_by(self, moment: Moment) -> None:
        """Take part in what the others do, contributing nothing."""
        if moment == "backward":
            self._replica.count_batch(self.gradients.stand_by())
            with self.gradients.buckets.others_given():
                self._strategy.gradients_ready()
        elif moment == "step":
            self._end_step()
        elif moment == "weigh":
            assert self._joining is not None
            self.usual_batch.weight_of(0.0, self._joining.mean)
        else:
            self._report(0.0)


def _weighted_mean(team: Team, value: float, weight: float | None) -> float:
    """The average over a team's members, weighted as their batches are; None: all count alike."""
    total = None if weight is None else team.agree(weight, "sum")
    if weight is None or not total:  # all have batches that count nothing
        return team.agree(value, "mean")
    # What counts nothing may not be finite.
    return team.agree(value * (weight / total) if weight else 0.0, "sum")
