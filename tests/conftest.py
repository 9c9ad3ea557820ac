"""Which tests run first, and what none may leave behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """A job inside the test's own process would be found by the tests that come after it."""
    yield
    torch_distributed = sys.modules.get("torch.distributed")
    assert torch_distributed is None or not torch_distributed.is_initialized()
