"""Fill the Python reference with the public names of the root, by the folder that defines them."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import paceline

_MARKER = re.compile(r"^<!-- public names of (\w+) -->$", re.MULTILINE)


def names_by_folder() -> dict[str, dict[str, str]]:
    """The names in ``paceline.__all__`` with their modules, by the folder that defines them."""
    found: dict[str, dict[str, str]] = {}
    # What one calls comes before what that returns or raises.
    in_order = sorted(paceline.__all__, key=lambda each: isinstance(getattr(paceline, each), type))
    for name in in_order:
        module = getattr(getattr(paceline, name), "__module__", None)
        if module is not None:  # __version__ is a string
            found.setdefault(module.split(".")[1], {})[name] = module
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``<!-- public names of train -->`` by what mkdocstrings reads."""
    names = names_by_folder()

    def blocks(match: re.Match[str]) -> str:
        return "\n\n".join(_block(name, module) for name, module in names.get(match[1], {}).items())

    return _MARKER.sub(blocks, markdown)


def _block(name: str, module: str) -> str:
    package = module.rpartition(".")[0]
    if importlib.util.find_spec(f"{package}.{name}") is None:
        return f"::: paceline.{name}"
    # A module is named after its one function; the short path would show the module.
    return f"::: {module}.{name}\n    options:\n      heading: paceline.{name}\n"
