"""Runs the real command in processes of its own, and looks at what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NAMESPACES = Path("/var/run/netns")
CLI = (sys.executable, "-m", "paceline")


def namespaces_of(*pids: int) -> list[str]:
    """The namespaces of the labs that these processes own."""
    return [path.name for pid in pids for path in NAMESPACES.glob(f"paceline-{pid}-*")]


def interfaces() -> set[str]:
    """The network interfaces of the machine's own namespace."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def processes_with(word: str) -> list[int]:
    """The processes but zombies and this one with a word in command line or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:  # ended while we looked
            continue
        if word.encode() in words and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def wait_until(is_so: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    """Wait for something to become so; fail if it does not."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a ``paceline`` command to its end."""
    return subprocess.run(
        [*CLI, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


class Running:
    """A ``paceline`` command that runs."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*CLI, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            # A test run that a shell put into the background ignores Ctrl-C; what it starts should
            # not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for_lines(self, word: str, number: int) -> None:
        """Read standard output until so many lines with a word were seen."""
        assert self.process.stdout is not None
        while number:
            line = self.process.stdout.readline()
            assert line, f"the command ended before it said {word!r}"
            number -= word in line

    def finish(self, signal_number: int | None = None) -> int:
        """Send a signal if asked to, wait for the end, and return the exit code."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        self.process.communicate(timeout=60)
        return self.process.returncode


Start = Callable[..., Running]
