"""Batch norm over the batches of all workers that average gradients, whatever their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.strategies import Strategy
from paceline.strategies.layout import wide_dtype

Sum = Callable[[Tensor], Tensor]


class SyncBatchNorm(_BatchNorm):
    """Batch norm with the statistics of the global batch, also where workers' shares differ.

    Under `sync` they are those of all workers, under strategies that exchange parameters those of
    the node. Gradients are then those of one process with the whole batch. Make it by
    :meth:`convert` before :func:`paceline.attach`; it works on every device. A model that is not
    attached uses its own batch alone.
    """

    @classmethod
    def convert(cls, model: nn.Module) -> nn.Module:
        """The model with every batch norm replaced by this one; parameters stay the same objects.

        Args:
            model: Changed in place, unless it is a batch norm itself.

        """
        if isinstance(model, _BatchNorm) and not isinstance(model, cls):
            made = cls(
                model.num_features,
                model.eps,
                model.momentum,
                model.affine,
                model.track_running_stats,
            )
            made._parameters, made._buffers = model._parameters, model._buffers
            made.training = model.training
            return made
        for name, child in model.named_children():
            setattr(model, name, cls.convert(child))
        return model

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise a batch of this worker."""
        strategy = _BOUND.get(self)
        team = None if strategy is None else strategy.lockstep()
        uses_batch = self.training or self.running_mean is None
        if strategy is None or team is None or team.size == 1 or not uses_batch:
            return super().forward(input)
        weight = strategy.replica.weight

        def total(values: Tensor) -> Tensor:
            summed = values.contiguous()
            strategy.wait(team.all_reduce(summed, "sum"))
            return summed

        result, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, 1.0 if weight is None else weight, total
        )
        self._follow(mean, variance, count)
        normalised: Tensor = result
        return normalised

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics towards those of a batch, as torch's batch norm does."""
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            assert self.num_batches_tracked is not None
            factor = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1.0).clamp(min=1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"batch norm needs a batch and channels, not {input.dim()} dimensions")


class _Normalise(torch.autograd.Function):
    """Normalise by the statistics of all workers' samples; exact through the statistics, too.

    A worker's gradients are multiplied by its weight ω afterwards. So what the others' losses
    contribute through the statistics comes in as their ω over this worker's:
    dx_i = γ/σ·(dy_i - (Σ ω_j·dy_j + x̂_i·Σ ω_j·dy_j·x̂_j) / (N·ω_i)).
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        eps: float,
        weight: float,
        total: Sum,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = values.to(wide_dtype(values.dtype))
        dims = [0, *range(2, values.dim())]
        is_counted = float(weight > 0.0)
        own_count = values.numel() / values.shape[1]
        sums = torch.cat([wide.sum(dims), wide.new_tensor([own_count])]) * is_counted
        sums = total(sums.nan_to_num() if not is_counted else sums)
        count = sums[-1]
        mean = sums[:-1] / count
        shape = [1, -1, *[1] * (values.dim() - 2)]
        centred = wide - mean.view(shape)
        squares = centred.square().sum(dims)
        variance = total(squares if is_counted else torch.zeros_like(squares)) / count
        scale = torch.rsqrt(variance + eps)
        normalised = centred * scale.view(shape)
        ctx.save_for_backward(normalised, scale, gamma, count)
        ctx.weight, ctx.total, ctx.dims, ctx.shape = weight, total, dims, shape
        ctx.mark_non_differentiable(mean, variance, count)
        result = normalised if gamma is None else normalised * gamma.to(wide.dtype).view(shape)
        result = result if beta is None else result + beta.to(wide.dtype).view(shape)
        return result.to(values.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normalised, scale, gamma, count = ctx.saved_tensors
        grad = grads[0].to(normalised.dtype)
        d_beta, d_gamma = grad.sum(ctx.dims), (grad * normalised).sum(ctx.dims)
        own = torch.cat([d_beta, d_gamma])
        sums = ctx.total(own * ctx.weight if ctx.weight else torch.zeros_like(own))
        if ctx.weight:
            first, second = (part.view(ctx.shape) for part in (sums / ctx.weight / count).chunk(2))
            d_values = (grad - first - normalised * second) * scale.view(ctx.shape)
            if gamma is not None:
                d_values = d_values * gamma.to(grad.dtype).view(ctx.shape)
        else:
            d_values = torch.zeros_like(grad)
        has_parameters = gamma is not None
        return (
            d_values.to(grads[0].dtype),
            d_gamma.to(gamma.dtype) if has_parameters else None,
            d_beta.to(gamma.dtype) if has_parameters else None,
            None,
            None,
            None,
        )


# Not in the modules: a copy of a model, or a saved one, belongs to no training.
_BOUND: WeakKeyDictionary[nn.Module, Strategy] = WeakKeyDictionary()


def bind_batch_norms(model: nn.Module, strategy: Strategy) -> None:
    """Let a model's batch norms use the batches of all workers that average gradients."""
    for module in model.modules():
        if isinstance(module, SyncBatchNorm):
            _BOUND[module] = strategy


def release_batch_norms(model: nn.Module) -> None:
    """Let a model's batch norms use this worker's batch alone."""
    for module in model.modules():
        _BOUND.pop(module, None)


def local_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that a batch of this worker changes, and no other worker's."""
    return [
        buffer
        for module in model.modules()
        if not isinstance(module, SyncBatchNorm)
        for buffer in module.buffers(recurse=False)
        if buffer.is_floating_point()
    ]
