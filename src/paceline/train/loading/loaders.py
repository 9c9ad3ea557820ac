"""The loaders of one training, as a checkpoint holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.train.loading.loader import Loader


class Loaders:
    """Loaders by the order in which they are made, before or after a checkpoint is read."""

    def __init__(self) -> None:
        self._made: list[Loader] = []
        self._waiting: list[dict[str, Any]] = []

    def add(self, loader: Loader) -> None:
        """One more; it goes on where a checkpoint says."""
        self._made.append(loader)
        if self._waiting:
            loader.load_state_dict(self._waiting.pop(0))

    def settle(self) -> None:
        """Training ends: wait for what loaders have asked the other workers."""
        for loader in self._made:
            loader.settle()

    def state(self) -> list[dict[str, Any]]:
        """Of each loader, for a checkpoint."""
        return [loader.state_dict() for loader in self._made]

    def check(self, states: Sequence[dict[str, Any]]) -> None:
        """Refuse states that do not belong to these loaders."""
        for loader, state in zip(self._made, states, strict=False):
            loader.check_state_dict(state)

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Let every loader go on where its state says."""
        for loader, state in zip(self._made, states, strict=False):
            loader.load_state_dict(state)
        self._waiting = list(states[len(self._made) :])
