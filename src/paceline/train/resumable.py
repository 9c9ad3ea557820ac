"""What can be saved and resumed: the part of a pace that deals with checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from paceline.train.contents import Contents
from paceline.train.registered import Registered
from paceline.train.resuming import load_checkpoint
from paceline.train.returning import Returning
from paceline.train.saver import Saver, done


class Resumable(ABC):
    """Saves and loads what :meth:`_contents` says."""

    def __init__(self) -> None:
        self._registered = Registered()
        self._saver = Saver()

    @abstractmethod
    def _contents(self) -> Contents: ...

    def _before_save(self) -> None:  # noqa: B027
        """A save begins."""

    def _before_load(self) -> None:  # noqa: B027
        """A checkpoint is to be loaded."""

    def _returning(self) -> Returning | None:
        """How nodes come back, where they may be lost."""
        return None

    def _after_load(self) -> None:  # noqa: B027
        """A checkpoint was loaded."""

    def register(self, **objects: Any) -> None:
        """Keep more in checkpoints: ``pace.register(scheduler=scheduler, scaler=scaler)``.

        Each object is saved and restored with the model. If a checkpoint was loaded before, the
        object gets its state at once.

        Args:
            **objects: Whatever has ``state_dict()`` and ``load_state_dict()``, by a name that it
                keeps.

        """
        self._registered.add(objects)

    def save(
        self,
        folder: str | Path,
        *,
        extra: Mapping[str, Any] | None = None,
        background: bool = False,
    ) -> Future[None]:
        """Write all that a resumed run needs to ``folder``.

        That is: model, optimizers, strategy, loaders, random states, and what :meth:`register` was
        given. All workers call it. The save before stays there until this one is complete. If a
        worker fails, all raise a :class:`CheckpointError` that names it.

        Args:
            folder: Where to write: on a disk that all workers share, or each node's own.
            extra: Values of your own, such as ``{"epoch": 3}``, which :meth:`load` returns.
            background: Whether to copy everything to the CPU's memory and train on while it is
                written. One save is under way at most: the next one, :meth:`finish` and
                :meth:`detach` wait for it and raise what it raised, and so does ``result()`` of
                what this returns.

        """
        self._before_save()
        returning, contents = self._returning(), self._contents()
        if returning is None:
            return self._saver.save(folder, contents, extra=extra, background=background)
        # In the foreground: nodes that may be lost do everything together in one order.
        returning.between_steps(
            lambda: self._saver.save(folder, contents, extra=extra, background=False).result()
        )
        return done()

    def load(
        self,
        folder: str | Path,
        *,
        missing_ok: bool = False,
        average: bool = False,
        random_state: bool = True,
    ) -> dict[str, Any] | None:
        """Read the newest complete save in ``folder``. All workers call it.

        A save of workers that were all equal (``sync``) can be loaded on any number of them, others
        on the same layout. If a worker fails, all raise a :class:`CheckpointError` that names it.

        Args:
            folder: What :meth:`save` was given.
            missing_ok: Whether to do nothing where there is no complete save yet.
            average: Whether workers that differed go on from their average, weighted as the
                strategy does, where the layout is another one. Without it they are refused.
            random_state: Whether to restore random states. On another layout, new ones are seeded
                from those that were saved.

        Returns:
            What ``extra=`` was at the save, or None where nothing was loaded.

        """
        self._before_load()
        returning = self._returning()
        if returning is not None and returning.is_resting:
            return None  # this node has the others' state, which is newer
        self._saver.wait()
        extra = load_checkpoint(
            folder,
            self._contents(),
            missing_ok=missing_ok,
            average=average,
            random_state=random_state,
        )
        if extra is not None:
            self._after_load()
        return extra
