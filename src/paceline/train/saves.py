"""Checkpoints on disk: ``folder/save-000001`` with a file of each worker, and a marker.

The marker is written last, so a save without one was interrupted. A folder may be on a disk that
all workers share, or each node may see its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch

_MARKER = "complete.json"
_NAME = re.compile(r"save-(\d{6,})")


def find_saves(folder: Path) -> dict[int, dict[str, Any] | None]:
    """The saves in ``folder`` by number, each with what its marker says, if it has one."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return {}
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return {int(match[1]): _read_marker(folder / match[0]) for match in matches}


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it, and say which of them is not one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def save_path(folder: Path, number: int) -> Path:
    """The folder of one save."""
    return folder / f"save-{number:06d}"


def worker_path(folder: Path, number: int, rank: int) -> Path:
    """The file of one worker in one save."""
    return save_path(folder, number) / f"worker-{rank}.pt"


def write_marker(folder: Path, number: int, marker: dict[str, Any], *, rank: int) -> None:
    """Declare a save complete. Several workers may do so, with the same words."""
    # Values that JSON does not know are there to be read by people.
    data = json.dumps(marker, indent=2, default=str).encode()
    path = save_path(folder, number) / _MARKER
    _write(path, lambda file: file.write(data), suffix=f".{rank}.part")


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a worker's file: then all of it is on the disk, or an OSError says why not."""
    make_folder(path.parent)
    _write(path, lambda file: _save(state, file), suffix=".part")


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a worker's file. What was on a GPU comes to ``device``, and the rest to the CPU."""

    def place(storage: Any, location: str) -> Any:
        return storage if location == "cpu" else storage.to(device=device)

    with _readable():
        state: dict[str, Any] = torch.load(path, map_location=place, weights_only=True)
        return state


def read_identifier(path: Path) -> str:
    """The save that a worker's file belongs to. Its tensors are not read."""
    with _readable():
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return str(state["identifier"])


def remove_save(folder: Path, number: int) -> None:
    """Remove a save, together with others who do the same at the same time."""
    # The marker first: what is left is then no save, should this be interrupted.
    with contextlib.suppress(OSError):
        (save_path(folder, number) / _MARKER).unlink()
    shutil.rmtree(save_path(folder, number), ignore_errors=True)


def _read_marker(path: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((path / _MARKER).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "identifier" in marker else None


def _write(path: Path, fill: Callable[[IO[bytes]], Any], *, suffix: str) -> None:
    """Write a file that appears under its name only when all of it is on the disk."""
    part = path.with_name(path.name + suffix)
    with part.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    # The names are on the disk only when the folders are.
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Sink:
    """A file that torch writes to, and that remembers why it could not be written.

    torch turns an error into "unexpected pos 1536 vs 1430". So it never learns of one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """The owner of the file does so."""


def _save(state: dict[str, Any], file: IO[bytes]) -> None:
    sink = _Sink(file)
    torch.save(state, cast(IO[bytes], sink))
    if sink.error is not None:
        raise sink.error


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Say in one sentence why a file cannot be read."""
    try:
        yield
    except Exception as error:
        # torch seeks before the beginning of a file that has lost its end.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError("it is damaged, or no file that pace.save wrote") from error
