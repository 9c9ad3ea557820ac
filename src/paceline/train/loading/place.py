"""Where a loader is in its data: what a checkpoint keeps of it, and what follows on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.train.loading.sharing import Sharing

_MAY_CHANGE = ("batch_size", "seed")
"""From one loader of some data to the next, between epochs."""


@dataclass(kw_only=True)
class Place:
    """The epoch, the batches of it that were taken, and the workers' speeds."""

    identity: dict[str, Any]
    """What a loader must have in common with the one whose epoch it continues."""
    batch_size: int
    sharing: Sharing
    epoch: int = 0
    position: int = 0
    """Batches of the epoch that were taken."""
    number: int = 0
    """Batches that were taken so far."""
    is_resumed: bool = False
    """Whether the rest of a saved epoch comes first."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch."""
        if epoch != self.epoch:
            self.epoch, self.position, self.is_resumed = epoch, 0, False

    def begin_pass(self) -> None:
        """A pass over the loader begins: if the one before was left early, with the next epoch."""
        if not self.is_resumed:
            self.leave_pass()
        self.is_resumed = False

    def take_batch(self) -> None:
        """One more batch of the epoch is taken."""
        self.position += 1
        self.number += 1

    def end_pass(self) -> None:
        """All batches of the epoch were taken."""
        self.epoch += 1
        self.position = 0

    def leave_pass(self) -> None:
        """Nobody will take the rest of an epoch that was begun."""
        if self.position:
            self.end_pass()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, and the workers' speeds."""
        return {
            "identity": dict(self.identity),
            "batch_size": self.batch_size,
            "epoch": self.epoch,
            "position": self.position,
            "number": self.number,
            "sharing": self.sharing.state_dict(),
        }

    def state_after(self) -> dict[str, Any]:
        """The same, once nobody has the loader any more: only a next epoch can follow."""
        return {**self.state_dict(), "epoch": self.epoch + (self.position > 0), "position": 0}

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a loader of other data."""
        for name, own in self.identity.items():
            if state["identity"].get(name) != own:
                raise ValueError(
                    f"the checkpoint's loader has {name}={state['identity'].get(name)}, and this "
                    f"one {name}={own}: the same samples would come twice"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of an epoch."""
        self.check(state)
        self.epoch, self.position = state["epoch"], state["position"]
        self.number, self.batch_size = state["number"], state["batch_size"]
        self.is_resumed = True
        self.sharing.load_state_dict(state["sharing"])

    def follow(self, state: Mapping[str, Any]) -> None:
        """Begin where a loader of the same data has ended: with the next epoch and its speeds.

        Another seed is another order, whose epochs count from 0.
        """
        if state["identity"]["seed"] == self.identity["seed"]:
            self.epoch = state["epoch"]
        self.sharing.follow(state["sharing"])


def kind_of(identity: Mapping[str, Any]) -> str:
    """What loaders have in common that follow one another."""
    return repr(sorted((name, one) for name, one in identity.items() if name not in _MAY_CHANGE))
