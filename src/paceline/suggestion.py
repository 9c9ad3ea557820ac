"""What to say about a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: the known names that look like ``name``, or else all of them."""
    names = list(known)
    close = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if not close:
        return f"known are {', '.join(names)}"
    *others, last = map(repr, close)
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
