"""One worker's keeper: ``python -m paceline.lab.worker [--slow F] --record DIR -- COMMAND…``.

torchrun starts a keeper for each worker. It starts the command, puts the worker's name before each
line of its output, slows it if asked to, passes on signals, and records how it failed and when.

Slowing: a worker that is to be F times slower is stopped (SIGSTOP) for the share 1 - 1/F of all
time. Stopping holds on a loaded machine, where a CPU quota would not: a worker that gets half a
core anyway would not notice a quota of half a core, but it loses half of whatever it gets when it
may not run half of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO

from paceline.lab.enter import AGENT_VARIABLE, end_with_parent

# How long a slowed worker may run before it is stopped again. Short against a training step; long
# against a scheduler's slice (about 3 ms), since a worker that was stopped is let run before those
# that were not, and would catch up within a short turn what it had lost on a loaded machine.
_RUNNING_S = 0.02
_GRACE_S = 3.0


class Keeper:
    """Starts the command in a process group of its own, so that its children stop with it."""

    def __init__(self, command: list[str]) -> None:
        self._ending = threading.Event()
        self.told_s: float | None = None
        """When a signal asked the keeper to end: what the command does then is no failure of its
        own."""
        keeper = os.getpid()

        def before_command() -> None:
            os.setpgid(0, 0)
            # The keeper may be killed with SIGKILL, and can then pass on nothing.
            end_with_parent(keeper, signal.SIGKILL)

        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before_command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        # Not before: the handler needs the process. A keeper that a signal ends until here takes
        # the command with it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.told_s is None:
            self.told_s = time.monotonic()
        self._ending.set()
        self._signal_group(signal.SIGCONT)
        self._signal_group(number)
        killer = threading.Timer(_GRACE_S, self._signal_group, [signal.SIGKILL])
        killer.daemon = True
        killer.start()

    def slow(self, factor: float) -> None:
        """Keep the group stopped for 1 - 1/factor of the time, measured, not assumed."""
        stopped_share = 1.0 - 1.0 / factor
        start = time.monotonic()
        stopped_s = 0.0
        while not self._ending.is_set():
            time.sleep(_RUNNING_S)
            # What is owed: late wake-ups of this loop are made good in the next turn.
            elapsed = time.monotonic() - start
            owed_s = (stopped_share * elapsed - stopped_s) / (1.0 - stopped_share)
            if owed_s <= 0.0:
                continue
            stop_start = time.monotonic()
            self._signal_group(signal.SIGSTOP)
            time.sleep(owed_s)
            self._signal_group(signal.SIGCONT)
            stopped_s += time.monotonic() - stop_start

    def relay(self, prefix: bytes) -> list[threading.Thread]:
        """Pass the command's output on, line by line, from now on."""
        assert self.process.stdout and self.process.stderr
        relays = [
            threading.Thread(target=_relay, args=[source, target, prefix], daemon=True)
            for source, target in ((self.process.stdout, 1), (self.process.stderr, 2))
        ]
        for relay in relays:
            relay.start()
        return relays

    def end_children(self) -> None:
        """End what the command left running in its process group."""
        self._ending.set()
        self._signal_group(signal.SIGKILL)


def _relay(source: IO[bytes], target: int, prefix: bytes) -> None:
    for line in source:
        _write_all(target, prefix + line.rstrip(b"\n") + b"\n")


def _write_all(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def pid_file(folder: Path, node: int, worker: int) -> Path:
    """Where the keeper of a worker notes the process group of its command."""
    return folder / f"pid-{node}-{worker}"


def _record_failure(folder: Path, own_name: str, code: int, told_s: float | None) -> None:
    """Note the time of a failure, so that the lab can tell the first from those it caused."""
    node, worker = own_name.split(":")
    note = {
        "node": int(node),
        "worker": int(worker),
        "code": code,
        "monotonic_s": time.monotonic(),
        "told_s": told_s,
    }
    _write(folder / f"failure-{node}-{worker}.json", json.dumps(note))


def _write(target: Path, text: str) -> None:
    partial = target.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(target)


def _shell_code(returncode: int) -> int:
    """A death by signal N as shells report it: 128 + N."""
    return returncode if returncode >= 0 else 128 - returncode


def main() -> None:
    """Keep one worker."""
    end_with_parent(int(os.environ[AGENT_VARIABLE]), signal.SIGTERM)
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--slow", action="append", default=[], metavar="NODE:WORKER=FACTOR")
    parser.add_argument("--lab-node", help="The node's number, if torchrun does not know it")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    node, worker = arguments.lab_node or os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
    own_name = f"{node}:{worker}"
    factors = dict(pair.split("=") for pair in arguments.slow)
    keeper = Keeper(arguments.command)
    own_pid_file = pid_file(arguments.record, int(node), int(worker))
    _write(own_pid_file, str(keeper.process.pid))
    if own_name in factors:
        threading.Thread(target=keeper.slow, args=[float(factors[own_name])], daemon=True).start()
    relays = keeper.relay(f"[node{own_name}] ".encode())
    code = _shell_code(keeper.process.wait())
    own_pid_file.unlink(missing_ok=True)
    keeper.end_children()
    for relay in relays:
        relay.join()
    if code != 0:
        _record_failure(arguments.record, own_name, code, keeper.told_s)
    sys.exit(code)


if __name__ == "__main__":
    main()
