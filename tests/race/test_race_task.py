from __future__ import annotations

import dataclasses

import pytest

from paceline.race.task import NUM_WARM_UP_STEPS, RaceSettings, Task, count_steps

SETTINGS = RaceSettings(
    model="small-cnn",
    data="digits",
    epochs=2,
    batch=32,
    learning_rate=0.05,
    target=0.95,
    seed=3,
)


def test_a_task_survives_its_journey() -> None:
    task = Task(
        entries=["ddp", "daso"],
        settings=SETTINGS,
        base="name = 'lab'",
        progress_file="p.json",
        result_file="r.json",
    )
    assert Task.from_json(task.to_json()) == task


def test_steps_are_whole_batches_of_all_workers() -> None:
    assert count_steps(SETTINGS, num_examples=1437, num_workers=4) == 2 * 11


def test_too_few_steps_to_time() -> None:
    few = dataclasses.replace(SETTINGS, epochs=1, batch=400)
    with pytest.raises(ValueError, match=r"make 0 steps .* give more --epochs or a smaller"):
        count_steps(few, num_examples=1437, num_workers=4)
    enough = dataclasses.replace(SETTINGS, epochs=NUM_WARM_UP_STEPS + 1, batch=1437)
    assert count_steps(enough, num_examples=1437, num_workers=1) == NUM_WARM_UP_STEPS + 1
