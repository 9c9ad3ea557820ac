"""Accelerate's ``LocalSGD`` with paceline's strategies."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.integrations.accelerators import accumulating, check_accelerator
from paceline.integrations.binding import Binding, unwrap_optimizer
from paceline.integrations.missing import missing
from paceline.strategies import Strategy
from paceline.strategies.registry import strategy_class
from paceline.train import Pace
from paceline.train.guard import muted

try:
    from accelerate import DistributedType
except ImportError as error:
    raise missing("accelerate", extra="accelerate") from error


class LocalSGD:
    """A drop-in for ``accelerate.local_sgd.LocalSGD``: the same arguments, and strategies.

    Inside the context, DistributedDataParallel keeps still and the strategy synchronises. At its
    end all workers have equal parameters and buffers, bit for bit.

    Nodes are the units: inside a node gradients are averaged at each step, between nodes parameters
    every ``local_sgd_steps`` steps of the optimizer. Accelerate's own lets each process go its way,
    also inside a node; ``workers=init_device_mesh("cuda", (num_processes, 1))`` does the same here.

    Args:
        accelerator: The ``Accelerator`` that prepared the model.
        model: The prepared model.
        local_sgd_steps: Steps of the optimizer between averages: the strategy's ``period``. None:
            the strategy's own, as for a strategy object.
        enabled: ``False`` leaves everything to DistributedDataParallel. So does a job of one
            process.
        strategy: A name, or a strategy object such as ``paceline.Daso(period=8)``.
        optimizer: The model's optimizer, or a list of them; by default those that the accelerator
            prepared for it.
        **options: Further options of the strategy, and arguments of :func:`paceline.attach`.

    Attributes:
        pace: What ``attach`` returned, inside the context.

    """

    def __init__(
        self,
        accelerator: Any,
        model: torch.nn.Module,
        local_sgd_steps: int | None,
        enabled: bool = True,
        *,
        strategy: str | Strategy = "local-sgd",
        optimizer: Any = None,
        **options: Any,
    ) -> None:
        check_accelerator(accelerator)
        if local_sgd_steps is not None:
            options = {**options, "period": _checked_period(local_sgd_steps, strategy)}
        self._binding = Binding(strategy, options)
        self._accelerator = accelerator
        self._model = model
        self._optimizer = optimizer
        self._context = contextlib.ExitStack()
        self.enabled = enabled and accelerator.distributed_type != DistributedType.NO
        self.num_steps = 0
        self.pace: Pace | None = None

    def __enter__(self) -> Self:
        if not self.enabled:
            return self
        model = self._model
        # torch.compile wraps what it compiles.
        model = getattr(model, "_orig_mod", model)
        with contextlib.ExitStack() as stack:
            if isinstance(model, DistributedDataParallel):
                stack.enter_context(muted(model))
                model = model.module
            self.pace = self._binding.attach(model, self._optimizers(model))
            stack.push(self.pace)
            stack.enter_context(accumulating(self._accelerator, self.pace))
            self._context = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, trace)

    def step(self) -> None:
        """Count a step, as Accelerate's does. Averages follow the optimizer's steps by themselves.

        With gradient accumulation it may be called for each batch: what counts towards
        ``local_sgd_steps`` is the optimizer's steps.
        """
        self.num_steps += 1

    def _optimizers(self, model: torch.nn.Module) -> list[Any]:
        if self._optimizer is not None:
            given = self._optimizer
            return list(given) if isinstance(given, list | tuple) else [given]
        own = set(model.parameters())
        found = [
            optimizer
            for optimizer in self._accelerator._optimizers
            if any(
                parameter in own
                for group in unwrap_optimizer(optimizer).param_groups
                for parameter in group["params"]
            )
        ]
        if not found:
            raise ValueError(
                "the accelerator has prepared no optimizer for this model; prepare both, "
                "accelerator.prepare(model, optimizer), or give LocalSGD optimizer="
            )
        return found


def _checked_period(local_sgd_steps: int, strategy: str | Strategy) -> int:
    if isinstance(strategy, Strategy):
        raise ValueError(
            f"{type(strategy).__name__} has its own period; give local_sgd_steps=None with a "
            "strategy object"
        )
    if "period" not in strategy_class(strategy).options_type.model_fields:
        raise ValueError(
            f"{strategy!r} has no period between averages; give local_sgd_steps=None with it"
        )
    return local_sgd_steps
