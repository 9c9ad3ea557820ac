"""Fill the Python reference with the public names of the root, by the folder that defines them."""

from __future__ import annotations

import re
from typing import Any

import paceline

_MARKER = re.compile(r"^<!-- public names of (\w+) -->$", re.MULTILINE)

# What Pace says in another file of itself.
_OPTIONS = {"Pace": "    options:\n      inherited_members: true\n"}


def names_by_folder() -> dict[str, list[str]]:
    """The public names, by the folder that defines them."""
    found: dict[str, list[str]] = {}
    # What one calls comes before what that returns or raises.
    names = sorted(paceline._HOMES, key=lambda name: isinstance(getattr(paceline, name), type))
    for name in names:
        found.setdefault(paceline._HOMES[name].split(".")[1], []).append(name)
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``<!-- public names of train -->`` by what mkdocstrings reads."""
    names = names_by_folder()

    def blocks(match: re.Match[str]) -> str:
        return "\n\n".join(_block(name) for name in names.get(match[1], []))

    return _MARKER.sub(blocks, markdown)


def _block(name: str) -> str:
    module = str(getattr(getattr(paceline, name), "__module__", ""))
    if module.rpartition(".")[2] != name:
        return f"::: paceline.{name}\n" + _OPTIONS.get(name, "")
    # A module is named after its one function; the short path would show the module.
    return f"::: {module}.{name}\n    options:\n      heading: paceline.{name}\n"
