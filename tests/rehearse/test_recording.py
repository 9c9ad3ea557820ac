"""What a recording holds of a strategy's own work, against what training does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from paceline.rehearse import predict
from paceline.rehearse.communication import communication_of, forgotten_in
from paceline.rehearse.record_worker import record_worker
from paceline.steps import Call, Capture, Step, capture_step, zoo_step
from paceline.strategies import Strategy, make_strategy, strategy_names
from paceline.teams import Pending
from paceline.teams.journal import Wait


@pytest.fixture(scope="module")
def step() -> Step:
    return zoo_step("small-cnn", batch=4)


@pytest.fixture(scope="module")
def capture(step: Step) -> Capture:
    return capture_step(step)


def calls_behind_the_last_wait(events: Sequence[Any]) -> Iterator[Call]:
    last = max(place for place, event in enumerate(events) if isinstance(event, Wait))
    return (event for event in events[last:] if isinstance(event, Call))


@pytest.mark.parametrize(
    ("name", "options", "merging_step", "op"),
    [
        ("daso", {"warmup_steps": 0, "merge": "corrected"}, 4, "_foreach_add_.List"),
        ("daso", {"warmup_steps": 0, "merge": "stale"}, 4, "_foreach_lerp_.Scalar"),
        ("daso", {"warmup_steps": 0, "delay": 0}, 3, "_foreach_copy_"),
        ("local-sgd", {"period": 4}, 3, "_foreach_copy_"),
    ],
)
def test_what_has_arrived_is_taken_over(
    step: Step, capture: Capture, name: str, options: dict[str, Any], merging_step: int, op: str
) -> None:
    """All parameters change, by the rule that was asked for."""
    recorded = record_worker(step, capture, make_strategy(name, **options), node_sizes=(2, 2))
    merges = [
        call
        for call in calls_behind_the_last_wait(recorded.steps[merging_step])
        if call.op == op and len(call.kernels[0].args[0]) == len(list(step.model.parameters()))
    ]
    assert len(merges) == 1
    changed = sum(each.numel for each in merges[0].kernels[0].args[0])
    assert changed == sum(parameter.numel() for parameter in step.model.parameters())


class Remembers(Strategy):
    """Exchanges as often as it has steps in its memory, a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.mean = torch.zeros(3)

    def after_step(self) -> None:
        super().after_step()
        self.seen.append(self.step)
        self.mean.add_(1.0)
        for _ in self.seen:
            self.wait(self.workers.world.all_reduce(self.mean, "mean"))


def test_every_rehearsed_worker_has_a_memory_of_its_own(step: Step, capture: Capture) -> None:
    strategy = Remembers()
    first, second = (
        record_worker(step, capture, strategy, node_sizes=(2, 2), index=index) for index in (0, 1)
    )
    assert communication_of(first) == communication_of(second)
    assert strategy.seen == []
    assert strategy.mean.tolist() == [0.0, 0.0, 0.0]


class Forgets(Strategy):
    """Begins something at every step, and asks after it, waits for it, or neither."""

    def __init__(self, *, care: str) -> None:
        super().__init__()
        self.care = care
        self.before: Pending | None = None

    def after_step(self) -> None:
        super().after_step()
        if self.before is not None and self.care == "wait":
            self.wait(self.before)
        elif self.before is not None and self.care == "ask":
            self.before.done()
        self.before = self.workers.world.all_reduce(torch.ones(10))


@pytest.mark.parametrize(("care", "num_warnings"), [("wait", 0), ("ask", 0), ("none", 1)])
def test_a_prediction_names_a_wait_that_never_happens(
    step: Step, care: str, num_warnings: int
) -> None:
    found = predict(step, cluster="lab-2x2", strategy=Forgets(care=care))
    told = [text for text in found.warnings if "was begun and never waited for" in text]
    assert len(told) == num_warnings
    assert all(text.startswith("all_reduce over the team world ") for text in told)
    assert all(text.endswith("give it to self.wait().") for text in told)


@pytest.mark.parametrize("name", strategy_names())
def test_the_strategies_wait_for_what_they_begin(step: Step, capture: Capture, name: str) -> None:
    strategy = make_strategy(name)
    if not strategy.chooses:
        assert forgotten_in(record_worker(step, capture, strategy, node_sizes=(2, 2))) is None
