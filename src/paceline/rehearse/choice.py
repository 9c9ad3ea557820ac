"""Which strategy is rehearsed: by its name and options, or as an object, which stays as it is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.strategies import Strategy, make_strategy


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy with its options, and the run's length where that is known."""

    strategy: str | Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    num_steps: int | None = None

    def make(self) -> Strategy:
        """The strategy, which knows the run's length if it wants to."""
        made = make_strategy(self.strategy, **self.options)
        if self.num_steps is None or not made.schedule().wants_length:
            return made
        told = own_copy(made)
        told.set_run_length(self.num_steps)
        return told

    @property
    def title(self) -> str:
        """What predictions call it."""
        return self.strategy if isinstance(self.strategy, str) else type(self.strategy).__name__

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for choices that do the same. A strategy object is its own key."""
        options = repr(sorted(self.options.items()))  # some are lists, which have no hash
        wants_length = make_strategy(self.strategy, **self.options).schedule().wants_length
        return self.strategy, options, self.num_steps if wants_length else None


def own_copy(strategy: Strategy) -> Strategy:
    """A strategy with a state of its own, whose tensors have no values.

    What it trains, if it does, and what cannot be copied is shared.
    """
    own, state = copy.copy(strategy), vars(strategy)
    replica = state.get("replica")
    shared = [replica, state.get("workers"), *(replica.parameters if replica else ())]
    memo: dict[int, Any] = {id(each): each for each in shared}
    with _WithoutValues():
        for name, value in state.items():
            with contextlib.suppress(TypeError, RuntimeError):  # a lock, a connection
                vars(own)[name] = copy.deepcopy(value, memo)
    return own


class _WithoutValues(TorchFunctionMode):
    """Inside, copies of tensors are on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            return memo.setdefault(id(tensor), torch.empty_like(tensor, device="meta"))
        return func(*args, **(kwargs or {}))
