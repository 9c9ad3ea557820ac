"""The clusters that come with paceline: the files in ``presets``, by their names."""

from __future__ import annotations

from importlib import resources

_FOLDER = resources.files("paceline.cluster").joinpath("presets")
_SUFFIX = ".toml"


def preset_names() -> tuple[str, ...]:
    """The names of the built-in clusters, in alphabetical order."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def preset_text(name: str) -> str:
    """The TOML text of a built-in cluster."""
    return _FOLDER.joinpath(name + _SUFFIX).read_text("utf-8")
