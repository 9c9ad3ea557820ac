"""Strategies that other packages bring: the entry points of the group ``paceline.strategies``.

A package declares ``[project.entry-points."paceline.strategies"]`` with a line such as
``my-strategy = "my_package.module:MyStrategy"``, and its strategy has a name wherever it is
installed. Nothing of it is imported before somebody asks for it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from paceline.strategies.strategy import Strategy

GROUP = "paceline.strategies"


def find_plugins() -> dict[str, EntryPoint]:
    """The entry points by name; the first of those that share one."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, entry)
    return found


def load_plugin(entry: EntryPoint) -> type[Strategy]:
    """The class that an entry point names.

    Args:
        entry: One of :func:`find_plugins`.

    """
    package = entry.dist.name if entry.dist is not None else entry.module
    where = f"the strategy {entry.name!r} of the package {package} ({entry.value})"
    try:
        loaded = entry.load()
    except Exception as error:  # whatever a foreign module does while it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{where} cannot be loaded: {reason}; repair or remove that package"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
        raise ValueError(
            f"{where} is not a subclass of paceline.Strategy; its entry point must name a class"
        )
    return loaded
