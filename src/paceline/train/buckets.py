"""Gradients in flat buckets, handed to the strategy as they become complete.

Buckets fill in the order in which the backward pass computes gradients, about the reverse of the
model's. The first is small, so that communication begins early (as in torch's DDP; Li et al. 2020).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from paceline.strategies.local import local, sharded_like
from paceline.strategies.strategy import BUCKET_BYTES
from paceline.teams import Pending

FIRST_BUCKET_BYTES = 1 << 20

OnBucketReady = Callable[[torch.Tensor], Pending | None]


@dataclass(frozen=True, slots=True)
class Weight:
    """What a worker's gradients count beside the others', where the mean worker's count 1."""

    mean: float = 1.0
    """Of the batches that they are the sum of."""
    scale: float = 1.0
    """By what they must be multiplied to be a sum of gradients times weights."""


class Bucket:
    """Gradients of some parameters, one after another in a flat tensor.

    Behind the gradients lies one number for each parameter: 1 if this worker has a gradient for
    it, else 0. Averaged with the rest, it tells whether *any* worker has one. A parameter that
    nobody used then keeps no gradient, as in a single process, and is not decayed or moved. The
    last number is what this worker's batch counts: 1, or its weight where batches are unequal, or 0
    without data. The average of gradients times weights, divided by the average weight, is the
    gradient of one process with the whole batch: g = Σ b_i·g_i / Σ b_i.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        owns = [local(p) for p in parameters]
        sizes = [own.numel() for own in owns]
        first = owns[0]
        num_flags = len(sizes) + 1
        self.flat = torch.zeros(sum(sizes) + num_flags, dtype=first.dtype, device=first.device)
        self._grads, self._used = torch.split(self.flat, [sum(sizes), num_flags])
        grads = torch.split(self._grads, sizes)
        # In the parameter's own memory format, so that the optimizer's kernels stay fast.
        self.views = [
            sharded_like(_view_like(grad, own), p)
            for grad, own, p in zip(grads, owns, parameters, strict=True)
        ]
        self.waiting_for = set(parameters)
        self.pending: Pending | None = None

    def collect(self, weight: Weight) -> list[int]:
        """Move every gradient into the bucket, if it is not there yet; the places without one."""
        if weight.scale == 0.0:
            return self._drop_all()
        missing, homes, newcomers = [], [], []
        self._used.fill_(1.0)
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if parameter.grad is None:
                missing.append(place)
                view.zero_()
            elif parameter.grad is not view:
                homes.append(local(view))
                newcomers.append(local(parameter.grad))
                parameter.grad = view
        if homes:
            torch._foreach_copy_(homes, newcomers)
        if missing:
            self._used[missing] = 0.0
        if weight != Weight():
            self._grads.mul_(weight.scale)
            self._used[-1] = weight.mean
        return missing

    def _drop_all(self) -> list[int]:
        """Contribute nothing: what was computed counts nothing, and may not be finite."""
        self.flat.zero_()
        for parameter in self.parameters:
            parameter.grad = None
        return list(range(len(self.parameters)))

    def is_in_place(self) -> bool:
        """Whether every gradient is where the last exchange left it."""
        return all(
            parameter.grad is None or parameter.grad is view
            for parameter, view in zip(self.parameters, self.views, strict=True)
        )

    def divide_by_weight(self) -> torch.Tensor:
        """Turn the average of weighted gradients into the weighted average; the mean weight."""
        mean = self._used[-1].clone()
        # On the device: reading the number would make the host wait.
        self.flat.div_(torch.where(mean == 0.0, torch.ones_like(mean), mean))
        return mean

    def give_back(self, missing: Sequence[int]) -> None:
        """Give parameters without an own gradient the others' average, if there is one."""
        if not missing:
            return
        used = self._used.tolist()
        for place in missing:
            if used[place] != 0.0:
                self.parameters[place].grad = self.views[place]

    def reset(self) -> None:
        """Get ready for the next backward pass."""
        self.waiting_for = set(self.parameters)
        self.pending = None


def _view_like(flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    # empty_like keeps the strides of a tensor without gaps, and of no other.
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, strides, flat.storage_offset())


class Buckets:
    """All buckets of a model. Launches them in the same order on every worker."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        on_ready: OnBucketReady,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.buckets = [Bucket(group) for group in group_parameters(parameters, bucket_bytes)]
        self._home = {
            parameter: bucket for bucket in self.buckets for parameter in bucket.parameters
        }
        self._on_ready = on_ready
        self._num_launched = 0
        self._missing: dict[int, list[int]] = {}
        self.weight = Weight()
        """Of the gradients that are launched next."""

    def are_in_place(self) -> bool:
        """Whether every gradient is where the last exchange left it: nobody set another one."""
        return all(bucket.is_in_place() for bucket in self.buckets)

    @torch.no_grad()
    def put(self, gradients: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """Set all gradients, which then count as exchanged."""
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view.copy_(gradients[parameter])

    @torch.no_grad()
    def take_in(self) -> None:
        """Let gradients that a strategy has set lie, and count, as exchanged ones do."""
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is not None and parameter.grad is not view:
                    parameter.grad = view.copy_(parameter.grad)

    def were_broken(self, *, are_dropped: bool) -> bool:
        """Whether the last exchange gave values that are not finite (and they were dropped)."""
        is_any_kept = any(
            parameter.grad is view
            for bucket in self.buckets
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True)
        )
        if are_dropped and is_any_kept:
            return False
        return not all(bucket.flat.isfinite().all() for bucket in self.buckets)

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        """A gradient is complete; launch its bucket if that was the last, and those behind it."""
        bucket = self._home[parameter]
        assert parameter.grad is not None
        if parameter.grad.layout != torch.strided:
            raise ValueError(
                "a gradient is sparse, and sparse gradients are not exchanged; make embeddings "
                "with sparse=False"
            )
        if parameter not in bucket.waiting_for:
            raise RuntimeError(
                "a parameter's gradient was completed twice in one backward pass, as happens with "
                "torch.utils.checkpoint(use_reentrant=True) and shared parameters; use "
                "use_reentrant=False"
            )
        bucket.waiting_for.remove(parameter)
        # Never before an earlier bucket: workers may compute gradients in different orders, and
        # must not meet in different collectives.
        while (
            self._num_launched < len(self.buckets)
            and not self.buckets[self._num_launched].waiting_for
        ):
            self._launch()

    def _launch(self) -> None:
        bucket = self.buckets[self._num_launched]
        missing = bucket.collect(self.weight)
        if missing:
            self._missing[self._num_launched] = missing
        bucket.pending = self._on_ready(bucket.flat)
        self._num_launched += 1

    def complete(
        self, wait: Callable[[Pending], None], *, are_alike: bool = True
    ) -> torch.Tensor | None:
        """The backward pass is over: launch what is left, and wait for all.

        Returns the mean weight of those who averaged, unless all workers' batches count alike.
        """
        mean_weight = None
        while self._num_launched < len(self.buckets):
            self._launch()
        for index, bucket in enumerate(self.buckets):
            if bucket.pending is not None:
                wait(bucket.pending)
            if not are_alike:
                mean_weight = bucket.divide_by_weight()
            bucket.give_back(self._missing.get(index, ()))
            bucket.reset()
        self._num_launched = 0
        self._missing.clear()
        return mean_weight

    def stand_by(self, wait: Callable[[Pending], None]) -> torch.Tensor:
        """Take part in the others' exchange, contributing nothing; the mean weight."""
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.pending = self._on_ready(bucket.flat)
        for bucket in self.buckets:
            if bucket.pending is not None:
                wait(bucket.pending)
            mean_weight = bucket.divide_by_weight()
            bucket.reset()
        return mean_weight

    @contextlib.contextmanager
    def others_given(self) -> Iterator[None]:
        """Inside, a worker that stood by has the others' gradients, as those who average do."""
        before = [(parameter, parameter.grad) for parameter in self._home]
        for bucket in self.buckets:
            bucket.give_back(range(len(bucket.parameters)))
        try:
            yield
        finally:
            for parameter, gradient in before:
                parameter.grad = gradient

    def release(self) -> None:
        """Give every gradient memory of its own again."""
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is view:
                    parameter.grad = view.clone()


def group_parameters(
    parameters: Sequence[nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Parameters in reverse order, cut into groups of about a bucket's size, one type each."""
    groups: list[list[nn.Parameter]] = []
    open_groups: dict[tuple[torch.dtype, torch.device], tuple[list[nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        key = (parameter.dtype, parameter.device)
        group, num_bytes = open_groups.get(key, ([], 0))
        group.append(parameter)
        num_bytes += parameter.nbytes
        limit = bucket_bytes if groups else min(bucket_bytes, FIRST_BUCKET_BYTES)
        if num_bytes >= limit:
            groups.append(group)
            open_groups.pop(key, None)
        else:
            open_groups[key] = (group, num_bytes)
    return groups + [group for group, _ in open_groups.values()]
