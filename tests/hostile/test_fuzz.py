"""Every parser, and the command line, with a few hundred inputs made to break it.

``benchmarks/fuzz.py`` tries 100,000 and more of each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import Target, mutated, targets

FOLDER = TemporaryDirectory()
TARGETS = targets(Path(FOLDER.name))


@pytest.fixture(scope="module", autouse=True)
def _remove_files() -> Iterator[None]:
    yield
    FOLDER.cleanup()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_seed_is_understood(target: Target) -> None:
    # Otherwise all mutations would be refused at the first look, and test nothing.
    outcomes = {target.outcome(seed) for seed in target.seeds}
    is_command = target.name in ("command line", "model")
    assert outcomes == {"refused"} if is_command else "read" in outcomes


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_sentences_come_out(target: Target) -> None:
    num_inputs = 40 if target.name == "command line" else 150

    @settings(
        max_examples=num_inputs,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(st.integers(0, 1 << 64), st.binary(max_size=64), st.text(max_size=64)))
    def check(drawn: int | bytes | str) -> None:
        if isinstance(drawn, int):
            target.outcome(mutated(random.Random(drawn), target))
        else:
            data = drawn if isinstance(drawn, bytes) else drawn.encode("utf-8", "surrogatepass")
            target.outcome(data)

    check()
