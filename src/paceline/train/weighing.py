"""What a worker's batches count in an average of gradients, where workers' batches are unequal."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from paceline.train.buckets import Weight


class Weighing:
    """The weights of the batches whose gradients have been added up since the last exchange.

    Gradients that were accumulated under other weights are rescaled when the weight changes, so
    that gradients times ``weight.scale`` is always the sum of gradients times weights.
    """

    def __init__(self) -> None:
        self.current: float | None = None
        """Of the batch at hand; None: all workers have a usual batch."""
        self.are_alike = True
        """Whether all workers had usual batches since the last exchange."""
        self.weight = Weight()
        """Of all gradients that are there."""
        self.is_used = False
        """Whether the batch at hand has given a gradient."""
        self._weights = [1.0]
        self._were_alike = True
        self._mutes: list[RemovableHandle] = []

    def reset(self, weight: float | None) -> None:
        """A batch begins, and no gradients were accumulated before it."""
        self._unmute()
        self.is_used = False
        self.current, self.are_alike = weight, weight is None
        value = 1.0 if weight is None else weight
        self._weights = [value]
        self.weight = Weight(mean=value, scale=value)

    @torch.no_grad()
    def go_on(
        self, weight: float | None, parameters: Iterable[nn.Parameter], *, is_new: bool = True
    ) -> None:
        """A batch begins, and its gradients will be added to those that are there.

        Args:
            weight: What it counts.
            parameters: Whose gradients are there.
            is_new: Whether none of them is of this batch already.

        """
        self._unmute()
        before, self.current = self.weight.scale, weight
        self.is_used = not is_new
        self._were_alike = self.are_alike
        self.are_alike &= weight is None
        value = 1.0 if weight is None else weight
        if is_new:
            self._weights.append(value)
        scale = value if value > 0.0 else before
        if value == 0.0 and before > 0.0:
            # What this batch adds must not count, beside what counts.
            self._mutes = [p.register_hook(torch.zeros_like) for p in parameters]  # type: ignore[no-untyped-call]
        elif scale != before:
            for parameter in parameters:
                if parameter.grad is not None and before == 0.0:
                    parameter.grad.zero_()  # a product would keep what is not finite
                elif parameter.grad is not None:
                    parameter.grad.mul_(before / scale)
        self.weight = Weight(mean=sum(self._weights) / len(self._weights), scale=scale)

    def drop_unused(self) -> None:
        """Forget the weight of a batch that has given no gradient, beside those that have."""
        if self.is_used or len(self._weights) == 1:
            return
        self._unmute()
        self.is_used = True  # as are those before it
        del self._weights[-1]
        self.are_alike = self._were_alike
        mean = sum(self._weights) / len(self._weights)
        self.weight = Weight(mean=mean, scale=self.weight.scale)

    def _unmute(self) -> None:
        for handle in self._mutes:
            handle.remove()
        self._mutes = []
