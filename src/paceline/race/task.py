"""What a race asks of its workers; travels to them as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

# The first steps open connections and fill allocators; they train, but are not timed.
NUM_WARM_UP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class RaceSettings:
    """What every entry of a race trains, and for how long."""

    model: str
    data: str
    epochs: int
    batch: int
    """Per worker."""
    learning_rate: float
    target: float
    """The accuracy whose time is taken."""
    seed: int
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of strategies, by entry."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one job of a race has to do."""

    entries: list[str]
    settings: RaceSettings
    base: str | None
    """A cluster as text, with the device that the workers are compared with; None: nothing is
    measured and predicted."""
    progress_file: str
    result_file: str

    def to_json(self) -> str:
        """The task as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task that :meth:`to_json` wrote."""
        values = json.loads(text)
        return cls(**values | {"settings": RaceSettings(**values["settings"])})


def count_steps(settings: RaceSettings, num_examples: int, num_workers: int) -> int:
    """The number of steps of a race; ValueError if that is too few to be timed."""
    together = settings.batch * num_workers
    num_steps = settings.epochs * (num_examples // together)
    if num_steps <= NUM_WARM_UP_STEPS:
        raise ValueError(
            f"{settings.epochs} epochs of {num_examples} examples make {num_steps} steps of "
            f"{settings.batch} x {num_workers} examples, too few to time; give more --epochs or a "
            "smaller --batch"
        )
    return num_steps
