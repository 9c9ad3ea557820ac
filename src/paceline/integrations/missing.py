"""What is said where a library is not installed."""

from __future__ import annotations


def missing(library: str, *, extra: str) -> ImportError:
    """The error that tells how to install what an integration needs.

    Args:
        library: What cannot be imported.
        extra: The extra of this package that brings it.

    """
    return ImportError(f"{library} is not installed: pip install 'paceline[{extra}]'")
