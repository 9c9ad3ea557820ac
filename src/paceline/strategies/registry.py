"""Strategies by name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.strategies.co2 import Co2
from paceline.strategies.daso import Daso
from paceline.strategies.demo import Demo
from paceline.strategies.diloco import Diloco, StreamingDiloco
from paceline.strategies.gossip import Gossip
from paceline.strategies.local_sgd import LocalSgd, PostLocalSgd
from paceline.strategies.plugins import find_plugins, load_plugin
from paceline.strategies.slowmo import SlowMo
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
    "slowmo": SlowMo,
    "co2": Co2,
    "gossip": Gossip,
    "demo": Demo,
}

# Built-in strategies that need folders below this one: imported when they are asked for. With the
# loggers' in train/logger.py, this table is where a folder names something further down.
_LATE = {"auto": "paceline.auto:Auto"}

_BUILT_IN = (*_STRATEGIES, *_LATE)

# Parameters of attach() and predict(), which also take a strategy's options.
RESERVED_NAMES = {
    *("model", "optimizer", "strategy", "workers", "timeout", "buffers", "metric", "report_every"),
    *("collective", "check", "survive", "loggers", "log_every", "forecast"),
    *("tensorboard", "trace", "trace_steps", "enabled", "step", "device", "cluster", "nodes"),
    *("workers_per_node", "kernel_model", "jitter", "samples", "shares", "global_batch"),
    "compiled",
}

S = TypeVar("S", bound=type[Strategy])


def register_strategy(name: str) -> Callable[[S], S]:
    """Give a strategy class a name, by which it can then be attached, raced and predicted.

    Args:
        name: A name that no other strategy has.

    """

    def register(strategy: S) -> S:
        _add(name, strategy)
        return strategy

    return register


def _add(name: str, strategy: type[Strategy]) -> None:
    if name in (*_STRATEGIES, *_LATE):
        raise ValueError(f"there is already a strategy named {name!r}; choose another name")
    reserved = sorted(RESERVED_NAMES & strategy.options_type.model_fields.keys())
    if reserved:
        raise ValueError(
            f"{strategy.__name__} has an option named {reserved[0]!r}, and attach() or "
            "predict() have a parameter of that name; rename the option"
        )
    _STRATEGIES[name] = strategy


def _add_plugin(name: str) -> None:
    """Load the strategy that another package brings under this name, if one does."""
    entry = find_plugins().get(name)
    if entry is None:
        return
    loaded = load_plugin(entry)
    if _STRATEGIES.get(name) is not loaded:  # its module may have registered it by itself
        _add(name, loaded)


def _add_plugins() -> None:
    """Load the strategies of all packages; one that is broken leaves the others alone."""
    for name, entry in find_plugins().items():
        if name in _BUILT_IN:
            warnings.warn(
                f"the strategy {name!r} of another package ({entry.value}) has the name of a "
                "built-in one, and is left out; it needs another name",
                RuntimeWarning,
                stacklevel=3,
            )
        if name in (*_STRATEGIES, *_LATE):
            continue
        try:
            _add_plugin(name)
        except ValueError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=3)


def strategy_names() -> list[str]:
    """The names of all strategies, in the order in which they are listed.

    What cannot be loaded of those that other packages bring is left out with a warning.
    """
    _add_plugins()
    return [*_STRATEGIES, *_LATE]


def comparable_strategy_names() -> list[str]:
    """The names of all strategies but those that only choose one of the others."""
    return [name for name in strategy_names() if not strategy_class(name).chooses]


def strategy_class(name: str) -> type[Strategy]:
    """The class of a strategy.

    Args:
        name: One of :func:`strategy_names`.

    """
    if name in _LATE:
        module, _, attribute = _LATE[name].partition(":")
        found: type[Strategy] = getattr(importlib.import_module(module), attribute)
        return found
    if name not in _STRATEGIES:
        _add_plugin(name)
    if name not in _STRATEGIES:
        raise ValueError(f"there is no strategy {name!r}: {suggestion(name, strategy_names())}")
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
    for name in strategy_names():
        if type(strategy) is strategy_class(name):
            return name, strategy.options.model_dump(exclude_unset=True)
    raise ValueError(
        f"{type(strategy).__name__} has no name, by which other processes would know it; give it "
        "one with register_strategy"
    )
