"""Options of strategies, as the commands take them."""

from __future__ import annotations

from typing import Any


def parse_options(texts: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Options of strategies from ``NAME.KEY=VALUE``, checked by the strategy itself."""
    import json

    from paceline.strategies import make_strategy, strategy_names

    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, _, value = text.partition("=")
        name, _, key = place.partition(".")
        if not value or not key:
            raise ValueError(f"--option {text} is not understood; write daso.period=8")
        if name not in names or name not in strategy_names():
            raise ValueError(f"--option {text}: {name!r} is not a strategy that was asked for")
        try:
            options.setdefault(name, {})[key] = json.loads(value)
        except json.JSONDecodeError:
            options.setdefault(name, {})[key] = value
    for name, values in options.items():
        make_strategy(name, **values)
    return options
