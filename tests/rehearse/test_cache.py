"""What is recorded once, and what again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.rehearse import predict
from paceline.rehearse.cache import known_of
from paceline.rehearse.choice import Choice
from paceline.rehearse.record import Recording
from paceline.steps import Step, zoo_step
from paceline.strategies import Strategy, register_strategy
from paceline.strategies.registry import _STRATEGIES


class Shards(Strategy):
    """Says more on more nodes: every node's share goes round by itself."""

    summary = "a strategy whose messages depend on the number of nodes"

    def after_step(self) -> None:
        super().after_step()
        for parameter in self.replica.parameters:
            for share in parameter.data.flatten().chunk(self.workers.num_nodes):
                self.wait(self.workers.across.all_reduce(share, "mean"))


@pytest.fixture
def shards() -> Iterator[str]:
    register_strategy("shards")(Shards)
    yield "shards"
    _STRATEGIES.pop("shards")


def recorded(
    step: Step, name: str, node_sizes: tuple[int, ...], options: dict[str, Any] | None = None
) -> Recording:
    choice = Choice(strategy=name, options=options or {})
    return known_of(step).recorded(step, choice, node_sizes)


@pytest.mark.parametrize("name", ["sync", "daso", "local-sgd", "streaming-diloco"])
def test_what_says_the_same_on_any_number_of_nodes_is_recorded_once(name: str) -> None:
    step = zoo_step("small-cnn", batch=8)
    assert recorded(step, name, (2,) * 4) is recorded(step, name, (2,) * 100)


def test_what_depends_on_the_number_of_nodes_is_recorded_for_each(shards: str) -> None:
    step = zoo_step("small-cnn", batch=8)
    assert recorded(step, shards, (1,) * 4) is not recorded(step, shards, (1,) * 8)


def test_a_narrow_wire_gathers_from_all_nodes() -> None:
    step = zoo_step("small-cnn", batch=8)
    options = {"wire": "int8"}
    four = recorded(step, "daso", (1,) * 4, options)
    eight = recorded(step, "daso", (1,) * 8, options)
    assert four is not eight


def test_captures_and_options_are_kept_apart() -> None:
    step, other = zoo_step("mlp", batch=8), zoo_step("mlp", batch=16)
    assert known_of(step) is known_of(step)
    assert known_of(step).capture is not known_of(other).capture
    often = predict(step, cluster="lab-2x2", strategy="daso", period=1, delay=0)
    rarely = predict(step, cluster="lab-2x2", strategy="daso", period=8)
    assert often.step_s > rarely.step_s


def test_a_step_that_nobody_holds_is_freed() -> None:
    step = zoo_step("mlp", batch=8)
    predict(step, cluster="lab-2x2", strategy="daso", device="h200")
    predict(step, cluster="lab-2x2", strategy=Shards(), device="h200")
    alive = weakref.ref(step)
    del step
    gc.collect()
    assert alive() is None
