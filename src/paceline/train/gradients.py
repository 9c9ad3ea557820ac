"""Gradients of a backward pass: noticed by hooks, exchanged in buckets while it still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from paceline.strategies.local import is_sharded
from paceline.teams import Pending
from paceline.train.buckets import Buckets, OnBucketReady
from paceline.train.weighing import Weighing


class Gradients:
    """Hooks on parameters, which tell when a backward pass begins to give gradients and ends."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        exchange: OnBucketReady,
        bucket_bytes: int,
        wait: Callable[[Pending], None],
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._bucket_bytes = bucket_bytes
        self._wait = wait
        self._on_begin = on_begin
        self._on_end = on_end
        self._is_local = False
        self._is_backward_open = False
        self._has_local = False
        self._is_resting = False
        self._handles: list[RemovableHandle] = []
        self._weighing = Weighing()
        self.last_weight: float | None = None
        """What this worker's batches counted, on average, in the last exchange; None: all alike."""
        self.hook(parameters)

    def hook(self, parameters: Sequence[nn.Parameter]) -> None:
        """Look after these parameters, and no others."""
        self._unhook()
        self._parameters = list(parameters)
        self.buckets = Buckets(parameters, self._exchange, bucket_bytes=self._bucket_bytes)
        self.buckets.weight = self._weighing.weight
        self.known = set(parameters)
        self.is_sharded = any(is_sharded(parameter) for parameter in parameters)
        self._handles = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in parameters
        ]

    def release(self) -> None:
        """Look after no parameter, and give every gradient memory of its own again."""
        self._unhook()
        self._weighing.reset(None)
        self.buckets.release()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextlib.contextmanager
    def kept_local(self) -> Iterator[None]:
        """Backward passes in here only add up gradients."""
        before, self._is_local = self._is_local, True
        try:
            yield
        finally:
            self._is_local = before

    @property
    def are_exchanged(self) -> bool:
        """Whether all gradients are what the last exchange left: nobody has added or set any."""
        return not self._has_local and self.buckets.are_in_place()

    @property
    def is_batch_used(self) -> bool:
        """Whether the batch at hand has given a gradient since it was weighed."""
        return self._weighing.is_used

    def weigh(self, weight: float | None, *, is_new: bool = True) -> None:
        """What the next batch counts beside a usual one; None: all workers have that.

        Args:
            weight: What it counts.
            is_new: Whether its weight is not yet among those of the gradients that are there.

        """
        self._is_resting = False
        if self._has_local:
            # A batch that left no gradient, such as one of an evaluation, has no weight either.
            self._weighing.drop_unused()
            self._weighing.go_on(weight, self.known, is_new=is_new)
        else:
            self._weighing.reset(weight)
        self.buckets.weight = self._weighing.weight

    def put(self, gradients: Sequence[torch.Tensor]) -> None:
        """Give every parameter a gradient that is the same on all workers already."""
        self.buckets.put(dict(zip(self._parameters, gradients, strict=True)))
        self._has_local = False

    def rest(self) -> None:
        """No batch with a weight follows. Gradients that wait for an exchange keep theirs."""
        if self._has_local:
            self._is_resting = True
            self._weighing.drop_unused()
            self.buckets.weight = self._weighing.weight
        else:
            self.weigh(None)

    def complete(self, *, are_all_active: bool) -> torch.Tensor | None:
        """Exchange what is left, and wait for all; the mean weight, unless all count alike."""
        weighing = self._weighing
        weighing.drop_unused()
        self.buckets.weight = weighing.weight
        self.last_weight = None if weighing.are_alike else weighing.weight.mean
        are_alike = are_all_active and weighing.are_alike
        mean_weight = self.buckets.complete(self._wait, are_alike=are_alike)
        self._has_local = False
        self.weigh(None if self._is_resting else self._weighing.current)
        return mean_weight

    def stand_by(self) -> torch.Tensor:
        """Take part in the others' exchange, contributing nothing; the mean weight."""
        return self.buckets.stand_by(self._wait)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self._weighing.is_used = True
        if self._is_local:
            self._has_local = True
            return
        assert isinstance(parameter, nn.Parameter)
        if not self._is_backward_open:
            self._on_begin()
            self._is_backward_open = True
            # Runs when this backward pass ends: clipping and unscaling, which come next, must see
            # the exchanged gradients.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._after_backward)
        self.buckets.gradient_ready(parameter)

    @torch.no_grad()
    def _after_backward(self) -> None:
        self._is_backward_open = False
        self._on_end()
