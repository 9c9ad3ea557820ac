from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from lab_machine import Running, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a ``paceline`` command; what a failed test leaves running is ended."""
    started: list[Running] = []

    def begin(*arguments: str, **environment: str) -> Running:
        started.append(Running(*arguments, **environment))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.finish(signal.SIGTERM)
