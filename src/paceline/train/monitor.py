"""Numbers of a run for people to watch, in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Monitor:
    """Writes scalars for TensorBoard, or nothing if no folder was given."""

    def __init__(self, folder: str | Path | None) -> None:
        self._writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard.writer import SummaryWriter
            except ImportError as missing:
                raise ImportError(
                    "TensorBoard is not installed; run: pip install 'paceline[tensorboard]'"
                ) from missing
            self._writer = SummaryWriter(str(folder))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers of one step."""
        if self._writer is not None:
            for name, number in numbers.items():
                self._writer.add_scalar(f"paceline/{name}", number, step)

    def log_text(self, step: int, line: str) -> None:
        """Write a line of one step."""
        if self._writer is not None:
            self._writer.add_text("paceline/decisions", line, step)

    def flush(self) -> None:
        """Write what is left to disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is left to disk, and nothing from now on."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
