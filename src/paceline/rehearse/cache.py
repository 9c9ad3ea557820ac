"""What was captured, recorded and priced before, for as long as its step is alive.

A capture depends on the step alone, and most recordings do not depend on the number of nodes: a
prediction for another cluster then takes milliseconds. Nothing in here may hold a step, or it would
never be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from paceline.rehearse.choice import Choice
from paceline.rehearse.communication import is_ever_told_yes, shapes_of
from paceline.rehearse.compiled import compile_step
from paceline.rehearse.record import Assumptions, Recording, record
from paceline.rehearse.record_worker import WorkerRecording, record_worker
from paceline.steps import Capture, Step, capture_step

R = TypeVar("R")


@dataclass
class Known:
    """What is known about one step."""

    capture: Capture
    _recordings: dict[Any, Recording] = field(default_factory=dict, repr=False)
    _workers: dict[Any, WorkerRecording] = field(default_factory=dict, repr=False)
    _suits: dict[Any, bool] = field(default_factory=dict, repr=False)
    _results: dict[Any, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def call(self, function: Callable[..., R], /, *arguments: Any, **numbers: Any) -> R:
        """What a function returns, by the identity of its arguments.

        Nothing is kept that has arrays of many devices in it.
        """
        is_many = any(np.ndim(number) for number in numbers.values()) or any(
            np.ndim(getattr(argument, "device_s", 0.0)) > 1 for argument in arguments
        )
        if is_many:
            return function(*arguments, **numbers)
        key = (function, *map(id, arguments), *sorted(numbers.items()))
        if key not in self._results:  # with the arguments, whose identity must not be used again
            self._results[key] = (arguments, function(*arguments, **numbers))
        result: R = self._results[key][1]
        return result

    def recorded(
        self,
        step: Step,
        choice: Choice,
        node_sizes: tuple[int, ...],
        assumed: Assumptions = Assumptions(),  # noqa: B008
    ) -> Recording:
        """A recording for nodes of these sizes.

        A strategy that is given by its name is first recorded on two nodes and on three. If it
        communicates the same on both, it does so on any number, and the recording is kept for all.
        """
        if self._suits_any_number(step, choice, node_sizes):
            node_sizes = node_sizes[:1] * 2
        key = (*choice.key, node_sizes, assumed.lateness)
        if assumed.readings is None and key in self._recordings:
            return self._recordings[key]
        recording = record(
            step,
            choice.strategy,
            node_sizes,
            capture=self.capture,
            assumed=assumed,
            record_one=self._worker(step, choice, node_sizes),
            num_steps=choice.num_steps,
            **choice.options,
        )
        if assumed.readings is None:
            self._recordings[key] = recording
        return recording

    def _suits_any_number(self, step: Step, choice: Choice, node_sizes: tuple[int, ...]) -> bool:
        """Whether a recording on two nodes stands for one on these."""
        is_named = isinstance(choice.strategy, str)
        if not is_named or len(set(node_sizes)) > 1 or len(node_sizes) == 1:
            return False
        return self.is_same_on_more_nodes(step, choice, node_sizes[0])

    def is_same_on_more_nodes(self, step: Step, choice: Choice, size: int) -> bool:
        """Whether a strategy communicates the same on two nodes of this size and on three."""
        key = (*choice.key, size)
        if key not in self._suits:
            whole = self._worker(step, choice, (size,) * 2)(**_FIRST)
            preview = self._worker(step, choice, (size,) * 3, is_preview=True)(**_FIRST)
            shapes = shapes_of(whole)
            self._suits[key] = all(
                shapes[phase][: len(own)] == own for phase, own in shapes_of(preview).items()
            )
        return self._suits[key]

    def _worker(
        self,
        step: Step,
        choice: Choice,
        node_sizes: tuple[int, ...],
        *,
        is_preview: bool = False,
    ) -> Callable[..., WorkerRecording]:
        """What records one worker, or knows its recording already."""
        chosen = choice.make()

        def recorded(
            *, node: int, index: int, lateness: int, readings: Sequence[float] | None
        ) -> WorkerRecording:
            anew = partial(
                record_worker,
                step,
                self.capture,
                chosen,
                node_sizes=node_sizes,
                node=node,
                index=index,
                lateness=lateness,
                readings=readings,
                is_preview=is_preview,
                collective=choice.collective,
            )
            if readings is not None:
                return anew()
            key = (*choice.key, node_sizes, node, index, is_preview)
            if (*key, lateness) not in self._workers:
                # Who heard nothing but "no" hears the same where all is later still.
                sooner = self._workers.get((*key, lateness - 1))
                is_same = sooner is not None and not is_ever_told_yes(sooner)
                self._workers[*key, lateness] = sooner if sooner and is_same else anew()
            return self._workers[*key, lateness]

        return recorded


_FIRST: dict[str, Any] = {"node": 0, "index": 0, "lateness": 0, "readings": None}
_KNOWN: WeakKeyDictionary[Step, Known] = WeakKeyDictionary()
_KNOWN_COMPILED: WeakKeyDictionary[Step, Known] = WeakKeyDictionary()


def known_of(step: Step, *, compiled: bool = False) -> Known:
    """What is known about a step; the second time its capture is at hand."""
    known = _KNOWN_COMPILED if compiled else _KNOWN
    if step not in known:
        known[step] = Known(compile_step(step) if compiled else capture_step(step))
    return known[step]
