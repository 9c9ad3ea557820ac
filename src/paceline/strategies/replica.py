"""What a strategy may touch of the model it trains: its parameters and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies.layout import FlatLayout, lay_out, wide_dtype
from paceline.strategies.local import is_sharded, local
from paceline.strategies.memory import distinct

BufferMode = Literal["mean", "keep", "broadcast"]

Tally = tuple[int, float | torch.Tensor]
"""Batches that were trained on, and what they counted."""

_LEAST_WEIGHT = 1e-9
"""Of a node that has trained on nothing: a weight of 0 stands for values that were refused."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where the model keeps a parameter, and what lay there."""

    owner: dict[str, nn.Parameter | None]
    name: str
    parameter: nn.Parameter
    dtype: torch.dtype
    was_trainable: bool

    def is_current(self) -> bool:
        parameter = self.parameter
        return (
            self.owner.get(self.name) is parameter
            and parameter.dtype == self.dtype
            and (self.was_trainable or not parameter.requires_grad)
        )


class Replica:
    """One worker's copy of the model.

    Holds each trainable parameter once, however often the model uses it; frozen parameters are
    equal everywhere and never travel.

    Args:
        model: The model.
        buffers: What becomes of buffers at exchanges, as in :func:`paceline.attach`.
        optimizers: The optimizers that train it.

    """

    def __init__(
        self, model: nn.Module, *, buffers: BufferMode, optimizers: Sequence[Optimizer] = ()
    ) -> None:
        self.buffer_mode: BufferMode = buffers
        self._model = model
        self._optimizers = list(optimizers)
        self.weight: float | None = None
        """What this worker's batch counts beside a usual one; None: all workers have that."""
        self.num_batches = 0
        """Batches that were trained on, one per exchange of gradients."""
        self.trained: float | torch.Tensor = 0.0
        """The same, each counted by the mean weight of those who averaged its gradients."""
        self.refresh()

    def refresh(self) -> None:
        """Look which parameters the model has now."""
        self.names = {
            parameter: name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        if not self.names:
            raise ValueError("the model has no parameter that requires a gradient")
        self.parameters = list(self.names)
        self._slots = [
            _Slot(module._parameters, name, parameter, parameter.dtype, parameter.requires_grad)
            for module in self._model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]

    def is_current(self) -> bool:
        """Whether the model still has the parameters it had: none replaced, converted, unfrozen.

        A new layer's parameters are found by who steps them.
        """
        return all(slot.is_current() for slot in self._slots)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that train it."""
        return list(self._optimizers)

    @property
    def is_sharded(self) -> bool:
        """Whether this worker holds only a part of each parameter."""
        return is_sharded(self.parameters[0])

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.parameters[0].device

    @property
    def learning_rate(self) -> float:
        """The current learning rate of the first optimizer's first group; 1 without one."""
        if not self._optimizers:
            return 1.0
        return float(self._optimizers[0].param_groups[0].get("lr", 1.0))

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is equal on all workers when training ends: parameters, and buffers that travel."""
        found = {name: local(p) for name, p in self._model.named_parameters()}
        if self.buffer_mode != "keep":
            found |= dict(self._model.named_buffers())
        return found

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The model's buffers as they are now: some modules replace theirs in every step."""
        return list(self._model.buffers())

    def float_buffers(self) -> list[torch.Tensor]:
        """The buffers that can be averaged, such as batch norm's statistics."""
        return [buffer for buffer in self.buffers if buffer.is_floating_point()]

    def other_buffers(self) -> list[torch.Tensor]:
        """The buffers that cannot be averaged, such as counters."""
        return [buffer for buffer in self.buffers if not buffer.is_floating_point()]

    def buffer_layouts(self) -> list[FlatLayout]:
        """Layouts for the buffers that travel."""
        return [] if self.buffer_mode == "keep" else lay_out(self.float_buffers())

    def count_batch(self, mean_weight: torch.Tensor | None) -> None:
        """A batch was trained on.

        Args:
            mean_weight: Of those who averaged its gradients; None: all workers count alike.

        """
        self.num_batches += 1
        # Narrow types could not count far; the number stays on the device.
        own = 1.0 if mean_weight is None else mean_weight.to(wide_dtype(mean_weight.dtype))
        self.trained = self.trained + own

    def tally(self) -> Tally:
        """What was trained on up to now, for :meth:`trained_since` later."""
        return self.num_batches, self.trained

    def trained_since(self, tally: Tally) -> float | torch.Tensor:
        """What a batch counted since then, on average; 1.0 where all workers' batches count alike.

        Once batches were unequal, this is a tensor, on all nodes from the same step on. It is the
        same on all workers that average gradients, so that it weights averages of parameters.

        Args:
            tally: What :meth:`tally` returned, such as at the last average.

        """
        if not isinstance(self.trained, torch.Tensor):
            return 1.0
        num_before, before = tally
        num_batches = self.num_batches - num_before
        if num_batches == 0:
            return torch.ones_like(self.trained)
        return ((self.trained - before) / num_batches).clamp(min=_LEAST_WEIGHT)

    def fragments(self, count: int) -> list[list[FlatLayout]]:
        """Layouts for ``count`` parts of the parameters of about equal size, in model order."""
        if count > len(self.parameters):
            raise ValueError(
                f"{count} fragments are more than the model's {len(self.parameters)} trainable "
                "parameters; ask for fewer"
            )
        return [lay_out(part) for part in _split_evenly(distinct(self.parameters), count)]

    def reset_broken_optimizer_state(self) -> int:
        """Forget what optimizers know of parameters whose state is not finite; how many these are.

        Averages of gradients that once were NaN stay NaN forever.
        """
        num_reset = 0
        for optimizer in self._optimizers:
            for parameter, state in list(optimizer.state.items()):
                tensors = [local(value) for value in state.values() if torch.is_tensor(value)]
                if not all(bool(tensor.isfinite().all()) for tensor in tensors):
                    del optimizer.state[parameter]
                    num_reset += 1
        return num_reset


def _split_evenly(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """Cut a list into ``count`` runs, none empty, each about as large as the others."""
    total = sum(p.numel() for p in parameters)
    parts: list[list[nn.Parameter]] = [[]]
    seen = 0
    for index, parameter in enumerate(parameters):
        remaining = len(parameters) - index
        missing_parts = count - len(parts)
        is_full = seen * count >= total * len(parts)
        if parts[-1] and missing_parts and (is_full or remaining == missing_parts):
            parts.append([])
        parts[-1].append(parameter)
        seen += parameter.numel()
    return parts
