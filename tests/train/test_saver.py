"""A save that is under way when training ends."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from paceline.train import saver
from paceline.train.saver import Saver


def test_a_worker_in_trouble_does_not_wait_for_others_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others may be waiting for this one, and would learn nothing before it goes."""
    monkeypatch.setattr(saver, "_GRACE_S", 0.1)
    own = Saver()
    own._under_way = Future()
    with pytest.warns(RuntimeWarning, match="not complete: others are missing"):
        own.close(is_in_trouble=True)
