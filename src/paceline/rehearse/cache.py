"""What was captured and rehearsed before, for as long as its step is alive.

A capture depends on the step alone, and most rehearsals do not depend on the number of nodes: a
prediction for another cluster then takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from paceline.rehearse.rehearsal import Rehearsal, rehearse
from paceline.rehearse.talk import shapes_of
from paceline.steps import Capture, Step, capture_step
from paceline.strategies import Strategy


@dataclass
class _Known:
    capture: Capture
    rehearsals: dict[Any, Rehearsal] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[Step, _Known] = WeakKeyDictionary()


def captured(step: Step) -> Capture:
    """The step's capture; the second time at once."""
    if step not in _KNOWN:
        _KNOWN[step] = _Known(capture_step(step))
    return _KNOWN[step].capture


def rehearsed(
    step: Step,
    strategy: str | Strategy,
    node_sizes: tuple[int, ...],
    options: Mapping[str, Any],
) -> Rehearsal:
    """A rehearsal for nodes of these sizes.

    A strategy is first recorded on two nodes and on three. If it says the same on both, it does so
    on any number, and the recording is kept for all of them.
    """
    if not isinstance(strategy, str) or len(set(node_sizes)) > 1 or len(node_sizes) == 1:
        return _rehearse(step, strategy, node_sizes, options)
    size = node_sizes[0]
    on_two = _rehearse(step, strategy, (size, size), options)
    on_three = _rehearse(step, strategy, (size, size, size), options)
    return (
        on_two
        if _says_the_same(on_two, on_three)
        else _rehearse(step, strategy, node_sizes, options)
    )


def _rehearse(
    step: Step,
    strategy: str | Strategy,
    node_sizes: tuple[int, ...],
    options: Mapping[str, Any],
) -> Rehearsal:
    capture = captured(step)
    rehearsals = _KNOWN[step].rehearsals
    # A strategy object is its own key; a name's options may be lists, which have no hash.
    key = (strategy, node_sizes, repr(sorted(options.items())))
    if key not in rehearsals:
        rehearsals[key] = rehearse(
            step, strategy, node_sizes=node_sizes, capture=capture, **options
        )
    return rehearsals[key]


def _says_the_same(one: Rehearsal, other: Rehearsal) -> bool:
    """Whether the first worker communicates the same in both, looking at the other briefly."""
    whole, brief = shapes_of(one.first), shapes_of(other.brief)
    return all(whole[phase][: len(shapes)] == shapes for phase, shapes in brief.items())
