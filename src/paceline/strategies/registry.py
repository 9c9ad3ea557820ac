"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from paceline.strategies.daso import Daso
from paceline.strategies.diloco import Diloco, StreamingDiloco
from paceline.strategies.local_sgd import LocalSgd, PostLocalSgd
from paceline.strategies.strategy import Strategy
from paceline.strategies.sync import Sync, SyncHierarchical
from paceline.suggestion import suggestion

_STRATEGIES: dict[str, type[Strategy]] = {
    "sync": Sync,
    "sync-hierarchical": SyncHierarchical,
    "local-sgd": LocalSgd,
    "post-local-sgd": PostLocalSgd,
    "diloco": Diloco,
    "streaming-diloco": StreamingDiloco,
    "daso": Daso,
}

S = TypeVar("S", bound=type[Strategy])


def register_strategy(name: str) -> Callable[[S], S]:
    """Give a strategy class a name, by which it can then be attached, raced and predicted."""

    def register(strategy: S) -> S:
        if name in _STRATEGIES:
            raise ValueError(f"there is already a strategy named {name!r}; choose another name")
        _STRATEGIES[name] = strategy
        return strategy

    return register


def strategy_names() -> list[str]:
    """The names of all strategies."""
    return list(_STRATEGIES)


def strategy_class(name: str) -> type[Strategy]:
    """The class of a strategy."""
    if name not in _STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}: {suggestion(name, _STRATEGIES)}")
    return _STRATEGIES[name]


def make_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """A strategy from its name and options, or the one given."""
    if isinstance(strategy, str):
        return strategy_class(strategy)(**options)
    if options:
        raise ValueError(
            f"options {', '.join(options)} go to the strategy itself when it is given as an object"
        )
    if not isinstance(strategy, Strategy):
        raise ValueError(
            f"a strategy is a name or an object such as Daso(), and cannot be {strategy!r}"
        )
    return strategy
