"""A strategy's options: the keyword-only parameters of its constructor, declared there alone.

Types and limits come from the annotations, descriptions from the class's ``Args:``. The command
line lists them, wrong values are refused in a sentence, and workers compare them before they train.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, create_model

from paceline.cluster.record import Record

F = TypeVar("F", bound=Callable[..., None])

_SECTION = re.compile(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


class Options(Record):
    """The options of a strategy, validated. Each strategy class has a type of its own."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def options_type_of(strategy: type[Any]) -> type[Options]:
    """The type of a strategy's options, from its constructor.

    A constructor that passes ``**options`` on also has those of the class above it.
    """
    parameters = inspect.signature(strategy.__init__).parameters.values()
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    hints, descriptions = _hints(strategy), _descriptions(strategy)
    fields: dict[str, Any] = {
        each.name: (
            hints.get(each.name, Any),
            Field(
                ... if each.default is each.empty else each.default,
                description=descriptions.get(each.name, ""),
            ),
        )
        for each in parameters
        if each.kind is each.KEYWORD_ONLY
    }
    base = getattr(strategy.__base__, "options_type", Options) if passes_on else Options
    made: type[Options] = create_model(strategy.__name__, __base__=base, **fields)
    return made


def checked(init: F) -> F:
    """A constructor that first checks the options, and keeps them as ``self.options``."""

    parameters = inspect.signature(init).parameters.values()
    others = {each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD}

    @functools.wraps(init)
    def check_first(self: Any, *arguments: Any, **named: Any) -> None:
        kind = type(self)
        if kind.__init__ is check_first:  # not a class's above
            options = {name: value for name, value in named.items() if name not in others}
            if options and not kind.options_type.model_fields:
                raise ValueError(f"{kind.__name__} has no options, and was given {min(options)}")
            self.options = kind.options_type(**options)
        init(self, *arguments, **named)

    return check_first  # type: ignore[return-value]


def _hints(strategy: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(strategy.__init__, include_extras=True)
    except NameError:  # a type that is known inside a function alone
        return {}


def _descriptions(strategy: type[Any]) -> dict[str, str]:
    section = _SECTION.search(inspect.getdoc(strategy) or "")
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: " ".join(text.split()) for name, text in entries}
