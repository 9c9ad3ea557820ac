"""Numbers of a run in TensorBoard's event files."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.train.logger import Logger


class TensorBoardLogger(Logger):
    """Writes scalars under ``paceline/``, and decisions as text.

    Args:
        folder: Where to write; by default ``runs/`` and the date, as ``SummaryWriter`` does.
        writer: A ``SummaryWriter`` of your own, which stays open.

    """

    def __init__(self, folder: str | Path | None = None, *, writer: Any = None) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError(
                "TensorBoard is not installed; run: pip install 'paceline[tensorboard]'"
            )
        self._folder = folder
        self._writer = writer
        self._is_own = writer is None

    def start(self, settings: Mapping[str, str | float]) -> None:
        """Open the file, and write what the run is."""
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            folder = None if self._folder is None else str(self._folder)
            self._writer = SummaryWriter(folder)
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer.add_text("paceline/settings", f"| setting | value |\n|---|---|\n{rows}", 0)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, number in numbers.items():
            self._writer.add_scalar(f"paceline/{name}", number, step)

    def log_text(self, step: int, line: str) -> None:
        """Write a line of text."""
        self._writer.add_text("paceline/decisions", line, step)

    def flush(self) -> None:
        """Write what is left to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left to disk; a writer of the user's stays open."""
        if self._is_own:
            self._writer.close()
        else:
            self._writer.flush()
