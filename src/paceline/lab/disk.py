"""A small disk that can be full: ``python -m paceline.lab.disk PARENT FOLDER BYTES``.

The process mounts a tmpfs on the folder in a mount namespace of its own, which the lab's agents
enter. The machine's own disk is never touched, and the disk is gone with the last process that sees
it. A line on standard input fills it, the next one makes room again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

DEFAULT_BYTES = 64 << 20
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_FILLER = ".paceline-full"
_BLOCK_BYTES = 1 << 16


class Disk:
    """A disk of a lab, in a process of its own; a context manager.

    Args:
        folder: Where the workers see it: a new or empty folder.
        size_bytes: How much fits on it.
    """

    def __init__(self, folder: Path, size_bytes: int = DEFAULT_BYTES) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(
                f"{folder} cannot become a disk that is full: give a new or empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        command = [sys.executable, "-m", "paceline.lab.disk"]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), str(folder), str(size_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ask("")

    @property
    def pid(self) -> int:
        """The process in whose mounts the disk is."""
        return self._process.pid

    def set_full(self, is_full: bool) -> None:
        """Fill the disk, or make room again."""
        self._ask("fill\n" if is_full else "free\n")

    def _ask(self, request: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer != "done":
            raise OSError(f"the lab's disk at {self.folder} failed: {answer or 'it is gone'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _mount(folder: str, size_bytes: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    call("unshare", _CLONE_NEWNS)
    # Nothing that is mounted here may appear outside.
    call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    call("mount", b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={size_bytes}".encode())


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        size = _BLOCK_BYTES
        while size:
            try:
                file.write(bytes(size))
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
                size //= 2


def main() -> None:
    """Hold the disk, and fill it when asked to."""
    from paceline.lab.enter import end_with_parent

    parent, folder, size_bytes = sys.argv[1:]
    end_with_parent(int(parent), signal.SIGKILL)
    try:
        _mount(folder, size_bytes)
        print("done", flush=True)
        for line in sys.stdin:
            if line.strip() == "fill":
                _fill(Path(folder, _FILLER))
            else:
                Path(folder, _FILLER).unlink(missing_ok=True)
            print("done", flush=True)
    except OSError as problem:
        print(problem.strerror, flush=True)


if __name__ == "__main__":
    main()
