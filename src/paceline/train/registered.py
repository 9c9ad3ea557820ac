"""What else a checkpoint holds, by name: schedulers, a gradient scaler, the user's objects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

from paceline.train.plain import as_plain


class Stateful(Protocol):
    """What can be saved: every scheduler, ``GradScaler``, optimizer and module."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore what :meth:`state_dict` returned."""


class Registered:
    """Objects by name; one that is added after a checkpoint was read gets its state then."""

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}
        self._waiting: dict[str, Any] = {}

    def add(self, objects: Mapping[str, Any]) -> None:
        """Some more."""
        for name, one in objects.items():
            if not all(callable(getattr(one, m, None)) for m in ("state_dict", "load_state_dict")):
                raise ValueError(
                    f"{name} is a {type(one).__name__}, which has no state_dict() and "
                    "load_state_dict(); give values of your own to pace.save(extra=...)"
                )
            if self._objects.get(name, one) is not one:
                raise ValueError(f"another {name} is registered already; use another name")
        for name, one in objects.items():
            self._objects[name] = one
            if name in self._waiting:
                one.load_state_dict(self._waiting.pop(name))

    def state(self) -> dict[str, Any]:
        """Of each object, for a checkpoint."""
        return {
            name: as_plain(one.state_dict(), key=f"registered[{name!r}]")
            for name, one in self._objects.items()
        }

    def check(self, states: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that lacks one of these objects."""
        if missing := self._objects.keys() - states.keys():
            raise ValueError(
                f"the checkpoint holds no {min(missing)}, which pace.register() was given here and "
                "not when it was saved"
            )

    def load(self, states: Mapping[str, Any]) -> None:
        """Restore all; where one refuses its state, those before it are as they were."""
        before = {name: copy.deepcopy(one.state_dict()) for name, one in self._objects.items()}
        try:
            for name, one in self._objects.items():
                one.load_state_dict(states[name])
        except Exception:
            for name, state in before.items():
                self._objects[name].load_state_dict(state)
            raise
        self._waiting = {name: s for name, s in states.items() if name not in self._objects}
