"""A job on a lab: one torchrun agent per node, started, watched and ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.lab.enter import NO_NAMESPACE
from paceline.lab.timetable import LabEvent, Timetable

# How long workers get to end by themselves: after SIGTERM, and after another node's failure, which
# reaches them as a closed connection and often makes a better error message than a signal.
_GRACE_S = 8.0
_FAILURE_GRACE_S = 3.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class JobNode:
    """Where one node's agent runs: its namespace (or none), address and number of workers."""

    namespace: str | None
    address: str
    workers_per_node: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first worker that failed, or agent that was killed: where, and with which exit code."""

    node: int
    worker: int | None
    """None for the node's agent."""
    code: int

    def __str__(self) -> str:
        if self.worker is None:
            signal_number = self.code - 128
            return (
                f"the agent of node {self.node} was killed by signal {signal_number} "
                f"(exit code {self.code})"
            )
        return f"worker {self.worker} of node {self.node} failed first, with exit code {self.code}"


class Job:
    """The agents of one job. Ends all of them if one fails, or if leaving by an exception."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        nodes: Sequence[JobNode],
        rendezvous_port: int,
        folder: Path,
        slow: Mapping[tuple[int, int], float],
        environment: Mapping[str, str],
        output: IO[str] | None,
        events: Sequence[LabEvent] = (),
    ) -> None:
        self._folder = folder
        self._timetable = Timetable(events)
        self._agents: list[subprocess.Popen[bytes]] = []
        self._is_ending = False
        self._killed_agent: Failure | None = None
        # When all agents were last seen alive, or had ended by themselves.
        self._undisturbed_s = time.monotonic()
        try:
            for index in range(len(nodes)):
                worker = _worker_command(command, folder, slow)
                arguments = _agent_command(index, nodes, rendezvous_port, folder, worker)
                self._agents.append(
                    subprocess.Popen(
                        arguments,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        # Ctrl-C at a terminal then reaches the lab alone, which ends its agents.
                        start_new_session=True,
                    )
                )
        except BaseException:
            self.end()
            raise

    def wait(self, on_poll: Callable[[], None] = lambda: None) -> int:
        """Wait for all agents; the exit code of the first worker that failed, or 0.

        ``on_poll`` is called again and again meanwhile, and the job's events take place.
        """
        try:
            failed_at: float | None = None
            # Every agent is asked each time: one that still runs must not hide one that failed.
            while None in (codes := [agent.poll() for agent in self._agents]):
                self._look_for_killed_agent()
                if failed_at is None and any(codes):
                    failed_at = time.monotonic()
                if failed_at is not None and time.monotonic() - failed_at > _FAILURE_GRACE_S:
                    self.end()
                self._timetable.act_on_due()
                on_poll()
                time.sleep(_POLL_S)
        except BaseException:
            self.end()
            raise
        self._look_for_killed_agent()
        failure = self.first_failure()
        if failure is not None:
            return failure.code
        return next((_shell_code(agent) for agent in self._agents if agent.returncode), 0)

    def first_failure(self) -> Failure | None:
        """The failure that came first; those of other workers are usually its consequence."""
        notes = [json.loads(path.read_text()) for path in self._folder.glob("failure-*.json")]
        if self._killed_agent is not None:
            # A dying agent's workers are told before the agent itself is seen to be gone.
            told = [
                note["told_s"]
                for note in notes
                if note["node"] == self._killed_agent.node and note["told_s"] is not None
            ]
            disturbed_s = min([self._undisturbed_s, *told])
            notes = [
                note
                for note in notes
                if note["told_s"] is None and note["monotonic_s"] < disturbed_s
            ]
        if not notes:
            return self._killed_agent
        first = min(notes, key=lambda note: note["monotonic_s"])
        return Failure(node=first["node"], worker=first["worker"], code=first["code"])

    def _look_for_killed_agent(self) -> None:
        """Note the first agent that was ended by a signal of someone else.

        Its workers end with it, and what they say of that comes later.
        """
        if self._is_ending or self._killed_agent is not None:
            return
        now_s = time.monotonic()
        for node, agent in enumerate(self._agents):
            if (agent.poll() or 0) < 0:
                self._killed_agent = Failure(node=node, worker=None, code=_shell_code(agent))
                return
        self._undisturbed_s = now_s

    def end(self) -> None:
        """SIGTERM to every agent, then SIGKILL to those that do not answer."""
        self._is_ending = True
        for agent in self._agents:
            if agent.poll() is None:
                agent.terminate()
        deadline = time.monotonic() + _GRACE_S
        for agent in self._agents:
            try:
                agent.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # The agent's own session: its keepers, which end their workers when it dies.
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


def _shell_code(agent: subprocess.Popen[bytes]) -> int:
    return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


def _worker_command(
    command: Sequence[str], folder: Path, slow: Mapping[tuple[int, int], float]
) -> list[str]:
    slow_arguments = [f"--slow={node}:{worker}={factor}" for (node, worker), factor in slow.items()]
    keeper = [sys.executable, "-m", "paceline.lab.worker", f"--record={folder}", *slow_arguments]
    # torchrun fills in string.Template's placeholders, but a shell's $$ is the shell's.
    return [*keeper, "--", *(argument.replace("$", "$$") for argument in command)]


def _agent_command(
    index: int,
    nodes: Sequence[JobNode],
    rendezvous_port: int,
    folder: Path,
    worker_command: Sequence[str],
) -> list[str]:
    node = nodes[index]
    enter = [
        *(sys.executable, "-m", "paceline.lab.enter"),
        *(str(os.getpid()), node.namespace or NO_NAMESPACE),
    ]
    torchrun = [
        *(sys.executable, "-m", "paceline.lab.agent"),
        f"--nnodes={len(nodes)}",
        f"--nproc-per-node={node.workers_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={nodes[0].address}:{rendezvous_port}",
        "--rdzv-id=paceline",
        # torchrun would compare host names, and all nodes of a lab have the same one.
        f"--rdzv-conf=is_host={int(index == 0)},join_timeout=120",
        f"--local-addr={node.address}",
        "--max-restarts=0",
        # By default torchrun leaves a folder behind in the system's temporary one.
        f"--log-dir={folder / f'torchrun{index}'}",
        "--no-python",
    ]
    return [*enter, *torchrun, *worker_command]
