"""Numbers of a run in Weights & Biases."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from paceline.train.logger import Logger


class WandbLogger(Logger):
    """Logs to the run that is active, or to a run of its own.

    Metrics are named ``paceline/...`` and have a step of their own, ``paceline/step``, so that they
    do not get in the way of what a script logs itself.

    Args:
        run: A run that ``wandb.init`` returned; by default the active one, if there is any.
        **options: For ``wandb.init``, where there is no run yet: ``project``, ``mode="offline"``.

    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ImportError(
                "Weights & Biases is not installed; run: pip install 'paceline[wandb]'"
            )
        if run is not None and options:
            raise ValueError(f"a run that exists takes no options; leave {next(iter(options))} out")
        self._run = run
        self._options = options
        self._is_own = False

    def start(self, settings: Mapping[str, str | float]) -> None:
        """Find the run, or begin one, and describe it."""
        import wandb

        if self._run is None:
            self._is_own = wandb.run is None
            self._run = wandb.init(**self._options) if self._is_own else wandb.run
        self._run.define_metric("paceline/step", hidden=True)
        self._run.define_metric("paceline/*", step_metric="paceline/step")
        self._run.config.update({"paceline": dict(settings)}, allow_val_change=True)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        named = {f"paceline/{name}": number for name, number in numbers.items()}
        self._run.log({"paceline/step": step, **named})

    def log_text(self, step: int, line: str) -> None:
        """Keep the last decision in the run's summary."""
        self._run.summary["paceline/decision"] = f"step {step}: {line}"

    def close(self) -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._run.finish()
