"""The loaders of one training, as a checkpoint holds them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import ref

from paceline.train.loading.loader import Loader
from paceline.train.loading.place import Place, kind_of


class Loaders:
    """Loaders as long as somebody has them, and of each kind where the last one was.

    Some loops make a loader anew for every epoch. It then begins where the one before has ended, or
    where a checkpoint says.
    """

    def __init__(self) -> None:
        self._made: list[ref[Loader]] = []
        self._last: dict[str, Place] = {}
        self._waiting: list[dict[str, Any]] = []

    def add(self, loader: Loader) -> None:
        """One more; it goes on where a checkpoint says."""
        kind = kind_of(loader.place.identity)
        state = _claim(loader, self._waiting)
        if state is not None:
            _restore(loader, state)
        elif kind in self._last:
            loader.place.follow(self._last[kind].state_after())
        self._made.append(ref(loader))
        self._last[kind] = loader.place

    def settle(self) -> None:
        """Leave nothing under way. All workers call it."""
        for loader in self._alive():
            loader.settle()

    def state(self) -> list[dict[str, Any]]:
        """Of each loader, for a checkpoint: those of a kind together, in the order of kinds.

        So a loop that makes two of them for every epoch finds them in the order of its first one.
        """
        found, loaders = [], self._alive()
        for kind, last in self._last.items():
            own = [each for each in loaders if kind_of(each.place.identity) == kind]
            found += [each.state_dict() for each in own]
            if not own:
                found.append(last.state_after())
        return found

    def check(self, states: Sequence[dict[str, Any]]) -> None:
        """Refuse states that do not belong to these loaders."""
        waiting = list(states)
        for loader in self._alive():
            _claim(loader, waiting)

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Let every loader go on where its state says."""
        self._waiting, self._last = list(states), {}
        for loader in self._alive():
            state = _claim(loader, self._waiting)
            if state is not None:
                _restore(loader, state)
            self._last[kind_of(loader.place.identity)] = loader.place

    def _alive(self) -> list[Loader]:
        found = [(known, known()) for known in self._made]
        self._made = [known for known, loader in found if loader is not None]
        return [loader for _, loader in found if loader is not None]


def _claim(loader: Loader, waiting: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Take the state that a loader goes on with out of those that wait for one."""
    identity = loader.place.identity
    for place, state in enumerate(waiting):
        if state["identity"] == identity:
            return waiting.pop(place)
    for place, state in enumerate(waiting):
        if not state["position"] and kind_of(state["identity"]) == kind_of(identity):
            return waiting.pop(place)
    for state in waiting:
        if state["position"]:
            loader.place.check(state)
    if waiting:
        warnings.warn(
            f"the checkpoint has no loader over {identity['num_samples']} samples like this one, "
            "which therefore begins with its first epoch",
            RuntimeWarning,
            stacklevel=4,
        )
    return None


def _restore(loader: Loader, state: dict[str, Any]) -> None:
    if state["identity"] == loader.place.identity:
        loader.load_state_dict(state)
    else:
        loader.place.follow(state)
