"""Show the reader what a code block needs: the comments by which the test suite skips it."""

from __future__ import annotations

import re
from typing import Any

_COMMENT = re.compile(r"^( *)<!-- needs: (.+?) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``<!-- needs: a GPU -->`` by a line that says so."""
    return _COMMENT.sub(r"\1Needs \2:\n\1{ .needs }\n", markdown)
