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

# Parameters of attach() and predict(), which also take a strategy's options.
RESERVED_NAMES = {
    *("model", "optimizer", "strategy", "workers", "timeout", "buffers", "metric", "report_every"),
    *("tensorboard", "trace", "trace_steps", "enabled", "step", "device", "cluster", "nodes"),
    *("workers_per_node", "kernel_model", "jitter", "samples"),
}

S = TypeVar("S", bound=type[Strategy])


def register_strategy(name: str) -> Callable[[S], S]:
    """Give a strategy class a name, by which it can then be attached, raced and predicted.

    Args:
        name: A name that no other strategy has.

    """

    def register(strategy: S) -> S:
        if name in _STRATEGIES:
            raise ValueError(f"there is already a strategy named {name!r}; choose another name")
        reserved = sorted(RESERVED_NAMES & strategy.options_type.model_fields.keys())
        if reserved:
            raise ValueError(
                f"{strategy.__name__} has an option named {reserved[0]!r}, and attach() or "
                "predict() have a parameter of that name; rename the option"
            )
        _STRATEGIES[name] = strategy
        return strategy

    return register


def strategy_names() -> list[str]:
    """The names of all strategies, in the order in which they are listed."""
    return list(_STRATEGIES)


def strategy_class(name: str) -> type[Strategy]:
    """The class of a strategy.

    Args:
        name: One of :func:`strategy_names`.

    """
    if name not in _STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}: {suggestion(name, _STRATEGIES)}")
    return _STRATEGIES[name]


def make_strategy(strategy: str | Strategy, **options: Any) -> Strategy:
    """A strategy from its name and options, or the one given.

    The one place where options given by name reach a strategy: those of ``attach``, ``predict`` and
    the command line all pass through here.

    Args:
        strategy: A name, or a strategy object, which has its options already.
        **options: The strategy's options.

    """
    if isinstance(strategy, str):
        return strategy_class(strategy)(**options)
    if options:
        raise ValueError(
            f"give the options {', '.join(options)} to the strategy object itself: "
            f"{type(strategy).__name__}({next(iter(options))}=...)"
        )
    if not isinstance(strategy, Strategy):
        raise ValueError(
            f"strategy={strategy!r} is neither a name nor a strategy object such as Daso()"
        )
    return strategy


def name_and_options(strategy: Strategy) -> tuple[str, dict[str, Any]]:
    """A strategy object as plain data, from which :func:`make_strategy` makes one like it.

    Args:
        strategy: An object of a class that has a name.

    """
    for name, kind in _STRATEGIES.items():
        if type(strategy) is kind:
            return name, strategy.options.model_dump(exclude_unset=True)
    raise ValueError(
        f"{type(strategy).__name__} has no name, by which other processes would know it; give it "
        "one with register_strategy"
    )
