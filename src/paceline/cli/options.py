"""Options of strategies, as the commands take them."""

from __future__ import annotations

from typing import Any


def names_in(text: str, option: str) -> list[str]:
    """Names that are separated by commas, with or without spaces.

    Args:
        text: What was given.
        option: The option that it was given to, for the message.

    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"{option} names nothing: separate names by commas.")
    return names


def parse_options(texts: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Options of strategies from ``NAME.KEY=VALUE``, checked by the strategy itself.

    Args:
        texts: What was given; ``KEY=VALUE`` where only one strategy was asked for.
        names: What was asked for: strategies, and a race's other entries.

    Returns:
        The options by the strategy's name.

    """
    from paceline.reading import parse_json
    from paceline.strategies import make_strategy, strategy_names

    asked = [name for name in names if name in strategy_names()]
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, _, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not dot:
            name, key = _only(asked, text), place
        if not value or not key:
            raise ValueError(f"--option {text} is not understood; write daso.period=8")
        if name not in asked:
            raise ValueError(f"--option {text}: {name!r} is not a strategy that was asked for")
        try:
            options.setdefault(name, {})[key] = parse_json(value)
        except ValueError:  # a bare word
            options.setdefault(name, {})[key] = value
    for name, values in options.items():
        make_strategy(name, **values)
    return options


def _only(asked: list[str], text: str) -> str:
    """The strategy that an option without a name is of."""
    if len(asked) != 1:
        given = ", ".join(asked) if asked else "no strategy"
        raise ValueError(
            f"--option {text} does not say which strategy it is of, and {given} was asked for; "
            "write daso.period=8"
        )
    return asked[0]
