"""What a library's user asked paceline for, kept until model and optimizers are there."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Strategy, make_strategy
from paceline.train import Pace, attach

_ATTACH_ARGUMENTS = {
    name
    for name, parameter in inspect.signature(attach).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


class Binding:
    """A strategy and the options of :func:`paceline.attach`, for one training or several.

    A library may train more than once with the same settings, and a strategy holds the state of one
    training. So each gets a strategy of its own.
    """

    def __init__(self, strategy: str | Strategy, options: dict[str, Any]) -> None:
        if "enabled" in options:
            raise ValueError(
                "enabled= would leave the workers without any synchronisation; leave it out here, "
                "and choose the library's own strategy to train without paceline"
            )
        self._strategy = strategy
        self._attach_options = {
            name: value for name, value in options.items() if name in _ATTACH_ARGUMENTS
        }
        self._strategy_options = {
            name: value for name, value in options.items() if name not in _ATTACH_ARGUMENTS
        }
        # Options that the strategy does not know are refused now, not when training begins.
        make_strategy(strategy, **self._strategy_options)

    def attach(
        self, model: nn.Module, optimizers: Sequence[Optimizer], *, num_steps: int | None = None
    ) -> Pace:
        """Bind a new strategy to the model. All workers call it.

        Args:
            model: The model, not wrapped.
            optimizers: Its optimizers, which may be wrapped.
            num_steps: Of the optimizer in the whole run, if it is known.

        """
        strategy = self._strategy
        if isinstance(strategy, Strategy):
            strategy = copy.deepcopy(strategy)
        else:
            strategy = make_strategy(strategy, **self._strategy_options)
        if num_steps is not None:
            strategy.set_run_length(num_steps)
        plain = [unwrap_optimizer(optimizer) for optimizer in optimizers]
        return attach(model, plain, strategy, **self._attach_options)


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer itself, of which Accelerate, Lightning and Fabric hand out wrappers."""
    for name in ("optimizer", "_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, Optimizer):
            return unwrap_optimizer(inner)
    assert isinstance(optimizer, Optimizer)
    return optimizer
