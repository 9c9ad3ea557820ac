"""The clusters that come with paceline: the files in ``presets``, by their names."""

from __future__ import annotations

from importlib import resources

_FOLDER = resources.files("paceline.cluster").joinpath("presets")
_SUFFIX = ".toml"
# Other names that clusters go by.
_OTHER_NAMES = {"aws-p3": "aws-p3-16xlarge", "gcp-a3": "gcp-a3-high"}


def preset_names() -> tuple[str, ...]:
    """The names of the built-in clusters, in alphabetical order."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def preset_name(name: str) -> str | None:
    """The name of the built-in cluster that is meant; None if there is none."""
    known = _OTHER_NAMES.get(name, name)
    return known if known in preset_names() else None


def preset_text(name: str) -> str:
    """The TOML text of a built-in cluster."""
    return _FOLDER.joinpath(name + _SUFFIX).read_text("utf-8")
