"""Which tests run first."""

from __future__ import annotations

import pytest

# The longest files, so that no process of `make test` is left with one of them at the end.
LONGEST = (
    "tests/lab/",
    "tests/race/",
    "tests/measure/",
    "tests/docs/",
    "tests/strategies/test_against_reference.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first; the rest stays in order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
