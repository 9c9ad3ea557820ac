"""What a recording holds of a strategy's own work, against what training does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from paceline.rehearse.communication import communication_of
from paceline.rehearse.record_worker import record_worker
from paceline.steps import Call, Capture, Step, capture_step, zoo_step
from paceline.strategies import Strategy, make_strategy
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
