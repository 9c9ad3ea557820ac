"""Where the numbers of a run go: TensorBoard, Weights & Biases, MLflow, or a user's own place."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.suggestion import suggestion


class Logger:
    """Takes the numbers of a run. Subclass it and override what you need; :meth:`log` is enough.

    All workers make the same loggers, and only the first worker calls them, from the training's own
    thread. An error in one is a warning, and that logger is left out from then on.
    """

    def start(self, settings: Mapping[str, str | float]) -> None:
        """The run begins.

        Args:
            settings: What describes it: strategy, workers, what was predicted.

        """

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers of one step.

        Args:
            step: How many optimizer steps were taken.
            numbers: By name, such as ``step_s``.

        """

    def log_text(self, step: int, line: str) -> None:
        """A decision of the strategy.

        Args:
            step: How many optimizer steps were taken.
            line: What it has decided.

        """

    def flush(self) -> None:
        """Write what is left: training has finished, and may go on."""

    def close(self) -> None:
        """Write what is left, and nothing from now on."""


# Loggers by name: they stand below this folder, and are imported when they are asked for.
_LATE = {
    "tensorboard": "paceline.integrations.tensorboard:TensorBoardLogger",
    "wandb": "paceline.integrations.wandb:WandbLogger",
    "mlflow": "paceline.integrations.mlflow:MlflowLogger",
}


def make_loggers(
    loggers: str | Logger | Sequence[str | Logger], *, tensorboard: str | Path | None = None
) -> list[Logger]:
    """The loggers that were asked for by name, as objects, or both."""
    is_list = isinstance(loggers, Sequence) and not isinstance(loggers, str)
    wanted: Sequence[str | Logger] = loggers if is_list else [loggers]  # type: ignore[assignment, list-item]
    made = [_make(each) if isinstance(each, str) else _checked(each) for each in wanted]
    if tensorboard is not None:
        made.append(_class("tensorboard")(tensorboard))
    return made


def _make(name: str) -> Logger:
    if name not in _LATE:
        raise ValueError(f"logger {name!r} is not known; {suggestion(name, _LATE)}")
    return _class(name)()


def _class(name: str) -> Callable[..., Logger]:
    module, _, attribute = _LATE[name].partition(":")
    found: Callable[..., Logger] = getattr(importlib.import_module(module), attribute)
    return found


def _checked(logger: Logger) -> Logger:
    for method in ("start", "log", "log_text", "flush", "close"):
        if not callable(getattr(logger, method, None)):
            raise ValueError(
                f"{type(logger).__name__} is no logger: it has no {method}(); subclass "
                "paceline.Logger"
            )
    return logger
