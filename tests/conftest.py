"""Which tests run first, and what none may leave behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

# The longest files, so that no process of `make tests` is left with one of them at the end.
LONGEST = (
    "tests/race/test_race.py",
    "tests/strategies/test_against_reference.py",
    "tests/docs/",
    "tests/measure/",
    "tests/lab/",
    "tests/cli/",
    "tests/teams/",
    "tests/strategies/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first, in this order; the rest stays as it is."""

    def place_of(item: pytest.Item) -> int:
        found = (i for i, name in enumerate(LONGEST) if item.nodeid.startswith(name))
        return next(found, len(LONGEST))

    items.sort(key=place_of)


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """A job inside the test's own process would be found by the tests that come after it."""
    yield
    torch_distributed = sys.modules.get("torch.distributed")
    assert torch_distributed is None or not torch_distributed.is_initialized()


@pytest.fixture(autouse=True)
def no_hook_on_all_optimizers_is_left() -> Iterator[None]:
    """A model that was attached, and not detached, is still seen at other models' steps."""
    yield
    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is not None:
        assert not optimizer._global_optimizer_pre_hooks
        assert not optimizer._global_optimizer_post_hooks
