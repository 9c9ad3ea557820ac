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

from paceline.lab.enter import DISK_VARIABLE, NO_NAMESPACE
from paceline.lab.timetable import LabEvent, Timetable
from paceline.lab.worker import pid_file

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
    """The agents of one job. Ends all of them if one fails, or if leaving by an exception.

    Where nodes are on their own (``meeting``), one that fails is lost, and the others go on.
    """

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
        meeting: str | None = None,
        disk_pid: int | None = None,
    ) -> None:
        self._folder = folder
        self._timetable = Timetable(events)
        self._agents: list[subprocess.Popen[bytes]] = []
        self._nodes = nodes
        self._meeting = meeting
        self.lost: list[int] = []
        """Nodes that were lost while others went on, in the order of their loss."""
        self._is_ending = False
        self._killed_agent: Failure | None = None
        # When all agents were last seen alive, or had ended by themselves.
        self._undisturbed_s = time.monotonic()

        def start(index: int) -> subprocess.Popen[bytes]:
            is_alone = meeting is not None
            worker = _worker_command(command, folder, slow, node=index if is_alone else None)
            rendezvous = (
                _own_rendezvous() if is_alone else _rendezvous(index, nodes, rendezvous_port)
            )
            node = nodes[index]
            enter = [
                *(sys.executable, "-m", "paceline.lab.enter"),
                *(str(os.getpid()), node.namespace or NO_NAMESPACE),
            ]
            variables = {**os.environ, **environment}
            if disk_pid is not None:
                variables[DISK_VARIABLE] = str(disk_pid)
            if meeting is not None:
                variables |= {"PACELINE_MEETING": meeting, "PACELINE_NODE": str(index)}
            return subprocess.Popen(
                [*enter, *_agent_command(index, node, rendezvous, folder), *worker],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C at a terminal then reaches the lab alone, which ends its agents.
                start_new_session=True,
            )

        self._start = start
        try:
            for index in range(len(nodes)):
                self._agents.append(start(index))
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
                if self._meeting is not None:
                    self._look_for_lost_nodes(codes)
                elif failed_at is None and any(codes):
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
        if self._meeting is not None:
            codes = [agent.returncode for agent in self._agents]
            self._look_for_lost_nodes(codes)
            if 0 in codes:
                return 0
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

    def _look_for_lost_nodes(self, codes: Sequence[int | None]) -> None:
        self.lost += [node for node, code in enumerate(codes) if code and node not in self.lost]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job was started."""
        return self._timetable.elapsed_s

    def plan(self, events: Sequence[LabEvent]) -> None:
        """Do something at moments of this job, counted from its start."""
        self._timetable.add(events)

    def signal_worker(self, node: int, worker: int, number: int) -> bool:
        """Send the processes of a worker a signal; whether there were any."""
        try:
            pid = int(pid_file(self._folder, node, worker).read_text())
            os.killpg(pid, number)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return True

    def kill_node(self, node: int) -> bool:
        """End a node at once, as if it had lost its power; whether it was running."""
        agent = self._agents[node]
        if agent.poll() is not None:
            return False
        os.killpg(agent.pid, signal.SIGKILL)
        for worker in range(self._nodes[node].workers_per_node):
            self.signal_worker(node, worker, signal.SIGKILL)
        return True

    def start_node(self, node: int) -> bool:
        """Start a node again that was lost; whether it was not running."""
        if self._agents[node].poll() is None:
            return False
        self._look_for_lost_nodes([agent.poll() for agent in self._agents])
        self._agents[node] = self._start(node)
        return True

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
    command: Sequence[str],
    folder: Path,
    slow: Mapping[tuple[int, int], float],
    *,
    node: int | None,
) -> list[str]:
    slow_arguments = [f"--slow={node}:{worker}={factor}" for (node, worker), factor in slow.items()]
    keeper = [sys.executable, "-m", "paceline.lab.worker", f"--record={folder}", *slow_arguments]
    if node is not None:
        keeper.append(f"--lab-node={node}")
    # torchrun fills in string.Template's placeholders, but a shell's $$ is the shell's.
    return [*keeper, "--", *(argument.replace("$", "$$") for argument in command)]


def _rendezvous(index: int, nodes: Sequence[JobNode], port: int) -> list[str]:
    """One job of torchrun on all nodes; the first node is its host."""
    return [
        f"--nnodes={len(nodes)}",
        f"--rdzv-endpoint={nodes[0].address}:{port}",
        # torchrun would compare host names, and all nodes of a lab have the same one.
        f"--rdzv-conf=is_host={int(index == 0)},join_timeout=120",
    ]


def _own_rendezvous() -> list[str]:
    """A job of torchrun for each node."""
    return ["--nnodes=1", "--rdzv-endpoint=localhost:0", "--rdzv-conf=is_host=1,join_timeout=120"]


def _agent_command(index: int, node: JobNode, rendezvous: Sequence[str], folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "paceline.lab.agent"),
        f"--nproc-per-node={node.workers_per_node}",
        "--rdzv-backend=c10d",
        *rendezvous,
        "--rdzv-id=paceline",
        f"--local-addr={node.address}",
        "--max-restarts=0",
        # By default torchrun leaves a folder behind in the system's temporary one.
        f"--log-dir={folder / f'torchrun{index}'}",
        "--no-python",
    ]
