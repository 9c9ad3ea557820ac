"""Show Sphinx roles of docstrings, such as :class:`~paceline.Cluster`, as plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|attr|mod):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Changes docstrings before mkdocstrings reads them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Keep what a role names, and leave out the role."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
