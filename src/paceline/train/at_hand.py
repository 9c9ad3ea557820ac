"""The batches at hand: what each counts, where several loaders have given one.

A loop may evaluate, with a loader of its own, between taking a batch and training on it. The batch
that is trained on then still counts what it did when it was taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.train.batch_norm import local_statistics


@dataclass(eq=False, kw_only=True)
class Batch:
    """A batch that was taken, and is not yet followed by another one."""

    weight: float | None
    """What it counts beside a usual one; None: all workers have that."""
    statistics: list[Tensor]
    """Batch norm's before it, if it counts nothing."""
    is_for_training: bool
    """Whether gradients could be computed when it was taken."""
    is_late: bool
    """Whether the same pass gave one before that may be trained on later."""
    is_used: bool = False
    """Whether it has given a gradient."""
    is_new: bool = True
    """Whether no gradients were exchanged since it was taken."""


class AtHand:
    """The last batch of every pass over a loader that is under way; that taken last counts.

    Args:
        model: The model.
        weigh: Told what the batch at hand counts, and whether it has given a gradient before.
        rest: Told that there is none.

    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weigh: Callable[[float | None, bool], None],
        rest: Callable[[], None],
    ) -> None:
        self._model = model
        self._weigh = weigh
        self._rest = rest
        self._batches: dict[object, Batch] = {}
        """By whom they were taken, that at hand last."""
        self._is_one_left_over = False

    @property
    def current(self) -> Batch | None:
        """The batch at hand."""
        return next(reversed(self._batches.values()), None)

    def take(self, owner: object, weight: float | None) -> None:
        """Somebody takes a batch, and has done with the one taken before.

        Args:
            owner: A pass over a loader, or whoever weighs batches of their own.
            weight: What it counts beside a usual one; None: all workers have that.

        """
        self._restore_statistics()
        before = self._batches.pop(owner, None)
        # What counts nothing must leave no trace in batch norm's statistics either.
        kept = local_statistics(self._model) if weight == 0.0 else []
        self._batches[owner] = Batch(
            weight=weight,
            statistics=[buffer.clone() for buffer in kept],
            is_for_training=torch.is_grad_enabled() and self._model.training,
            is_late=before is not None and (before.is_late or _is_open(before)),
        )
        self._is_one_left_over = False
        self._weigh(weight, False)

    def leave(self, owner: object) -> None:
        """A pass ends: what was at hand before its last batch is so again."""
        self.forget_unless_at_hand(owner)
        if owner not in self._batches:
            return
        self._restore_statistics()
        batch = self._batches.pop(owner)
        before = self.current
        if before is None:
            is_any_left = batch.is_late or _is_open(batch)
            self._is_one_left_over = is_any_left and batch.weight is not None
            self._rest()
        else:
            self._weigh(before.weight, before.is_used)

    def note_use(self) -> None:
        """The batch at hand has given a gradient."""
        if self.current is not None:
            self.current.is_used = True

    def forget_unless_at_hand(self, owner: object) -> None:
        """Nobody trains on this one's batch any more, if another one is trained on."""
        if not self._is_at_hand(owner):
            self._batches.pop(owner, None)

    def _is_at_hand(self, owner: object) -> bool:
        return next(reversed(self._batches), None) is owner

    def _restore_statistics(self) -> None:
        """Put back what a batch that counts nothing has changed."""
        if self.current is not None and self.current.statistics:
            now = local_statistics(self._model)
            for buffer, before in zip(now, self.current.statistics, strict=True):
                buffer.copy_(before)

    def check(self) -> None:
        """Gradients are about to be exchanged: warn if they are not those of the batch at hand."""
        if self._is_one_left_over:
            self._is_one_left_over = False
            _warn(
                "a backward pass follows the end of a loop over pace.loader that left a batch "
                "untrained, and its gradients count as those of an equal batch; train on each "
                "batch inside the loop, before the next one is taken"
            )
        own = self.current
        others = [each for each in self._batches.values() if each is not own]
        if own and any(_is_open(each) and each.weight != own.weight for each in others):
            _warn(
                "batches of two loaders were taken before a backward pass, and they are shared "
                "differently: gradients count as those of the batch that was taken last; take one "
                "batch, call backward() inside pace.no_sync(), and then do so with the other"
            )

    def exchanged(self) -> None:
        """Gradients were exchanged: what a step changes in batch norm's statistics stays."""
        for batch in self._batches.values():
            batch.is_new = False
        if self.current is not None and self.current.is_used:
            self._restore_statistics()
            self.current.statistics = []


def _is_open(batch: Batch) -> bool:
    """Whether somebody may still mean to train on a batch."""
    return batch.is_for_training and batch.is_new and not batch.is_used


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
