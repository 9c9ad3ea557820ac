"""A table of a TOML file that knows its place, so that a mistake is reported with its key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")

_LARGEST = sys.float_info.max


class Table:
    """The values of one TOML table. Every error names the file and the key's dotted path.

    ``keys`` are the known ones; an empty collection stands for any.
    """

    def __init__(self, values: Any, *, origin: str, path: str = "", keys: Collection[str]) -> None:
        self._origin = origin
        self._path = path
        if not isinstance(values, Mapping):
            raise self.error("", f"has to be {_table_of(keys)}, not {values!r}")
        self._values = values
        # Before anything is read: the key that seems to be missing is often the misspelt one.
        for key in values:
            if keys and key not in keys:
                raise self.error(key, f"is not a known key: {suggestion(key, keys)}")

    def error(self, key: str, problem: str) -> ValueError:
        """The exception for a problem with a key of this table, or with all of it."""
        place = self._place(key)
        return ValueError(": ".join(part for part in (self._origin, place) if part) + f" {problem}")

    def text(self, key: str, *, default: str | None = None) -> str:
        """A text; without a default it has to be there and must not be empty."""
        value = self._get(key, default, "a text in quotes")
        if not isinstance(value, str) or (default is None and not value):
            raise self.error(key, f"has to be a text in quotes, not {value!r}")
        return value

    def count(self, key: str, *, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(key, default, "a whole number of at least 1")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(key, f"has to be a whole number of at least 1, not {value!r}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, f"has to be true or false, not {value!r}")
        return value

    def price(self, key: str) -> float | None:
        """An amount of money, or None where the table has no such key."""
        if key not in self._values:
            return None
        value = self._values[key]
        # The comparison also refuses nan and inf, which TOML can spell.
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 <= value <= _LARGEST
        ):
            raise self.error(key, f"has to be a number of US dollars such as 24.48, not {value!r}")
        return float(value)

    def number(
        self, key: str, *, default: float, is_right: Callable[[float], bool], accepted: str
    ) -> float:
        """A plain number of a certain range."""
        value = self._values.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not is_right(value):
            raise self.error(key, f"has to be {accepted}, not {value!r}")
        return float(value)

    def quantity(self, key: str, parse: Callable[[object], T], *, example: str) -> T:
        """A text with a unit, read by one of the parsers of :mod:`paceline.cluster.units`."""
        value = self._get(key, None, f"a quantity with its unit, such as '{example}'")
        try:
            return parse(value)
        except ValueError as problem:
            raise self.error(key, f"= {problem}") from None

    def names(self) -> list[str]:
        """The keys that are there, in the file's order, where they are names of the user's."""
        if "" in self._values:
            raise self.error("''", "is empty: write a name between the quotes")
        return list(self._values)

    def table(self, key: str, *, keys: Collection[str]) -> Table:
        """A table inside this one."""
        value = self._get(key, None, _table_of(keys))
        return Table(value, origin=self._origin, path=self._place(key), keys=keys)

    def tables(self, key: str, *, keys: Collection[str]) -> list[Table]:
        """An array of tables, with at least one."""
        value = self._get(key, None, f"at least one [[{key}]] table")
        if not isinstance(value, list) or not value:
            raise self.error(key, f"has to be at least one [[{key}]] table, not {value!r}")
        return [
            Table(item, origin=self._origin, path=f"{self._place(key)}[{index}]", keys=keys)
            for index, item in enumerate(value)
        ]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def _get(self, key: str, default: Any, accepted: str) -> Any:
        if key not in self._values and default is None:
            raise self.error(key, f"is missing: write {accepted}")
        return self._values.get(key, default)

    def _place(self, key: str) -> str:
        shown = key if key.isprintable() else repr(key)
        return ".".join(part for part in (self._path, shown) if part)


def _table_of(keys: Collection[str]) -> str:
    return f"a table with the keys {quoted(keys)}" if keys else "a table of named tables"


def quoted(names: Collection[str]) -> str:
    """Names for a sentence: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def suggestion(name: str, known: Collection[str]) -> str:
    """What was probably meant, and otherwise what there is."""
    close = get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    return f"known are {quoted(known)}"
