"""Which strategy is rehearsed: by its name and options, or as an object, which stays as it is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.strategies import Strategy, make_strategy, name_and_options
from paceline.teams import CollectiveName


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy with its options, how teams sum, and the run's length where that is known."""

    strategy: str | Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    num_steps: int | None = None
    collective: CollectiveName = "backend"
    chosen_by: str = ""
    """The name of the strategy that picked this one."""

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
        if self.chosen_by:
            given = ", ".join(f"{key}={value}" for key, value in self.options.items())
            return f"{self.chosen_by}: {self.strategy}" + (f"({given})" if given else "")
        return self.strategy if isinstance(self.strategy, str) else type(self.strategy).__name__

    def picked(
        self, step_s: Callable[[Choice], float], *, alone_s: float, num_nodes: int
    ) -> Choice:
        """What trains: this choice, or what its strategy picks if it only chooses among others.

        Args:
            step_s: Seconds per step of a choice.
            alone_s: Seconds of a step without any exchange.
            num_nodes: The number of nodes.
        """
        made = self.make()
        if not made.chooses:
            return self

        def of(strategy: Strategy) -> Choice:
            name, options = name_and_options(strategy)
            return replace(self, strategy=name, options=options, chosen_by=self.title)

        picked = made.pick(
            lambda strategy: step_s(of(strategy)), alone_s=alone_s, num_nodes=num_nodes
        )
        return of(picked)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for choices that do the same. A strategy object is its own key."""
        options = repr(sorted(self.options.items()))  # some are lists, which have no hash
        wants_length = make_strategy(self.strategy, **self.options).schedule().wants_length
        num_steps = self.num_steps if wants_length else None
        return self.strategy, options, num_steps, self.collective


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
