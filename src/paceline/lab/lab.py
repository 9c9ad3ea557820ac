"""An emulated cluster on this machine, on which jobs run."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from paceline.cluster import Cluster
from paceline.lab import network, processes
from paceline.lab.disk import Disk
from paceline.lab.enter import NO_NAMESPACE
from paceline.lab.faults import Fault
from paceline.lab.injection import Injection
from paceline.lab.job import Job, JobNode
from paceline.lab.layout import Slow, check_rate, link_rates_bytes_per_s
from paceline.lab.owner import is_orphan, new_lab_name
from paceline.lab.signals import signals_as_exits
from paceline.lab.timetable import LabEvent

Emulation = Literal["namespaces", "software"]

# torchrun's own default, which it announces on every start unless the variable is set.
_THREADS = {"OMP_NUM_THREADS": "1"}
# Gloo looks up the host name of every peer; in a namespace that fails, with a warning each time.
_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "RUST_LOG": "error"}
_PORT = 29400
_MEETING_PORT = 29500


def choose_emulation(asked: str = "auto") -> Emulation:
    """How this machine can emulate links: shaped by the kernel, or in software.

    Args:
        asked: ``"namespaces"``, ``"software"``, or ``"auto"``: namespaces where they are possible.
    """
    if asked not in ("auto", "namespaces", "software"):
        raise ValueError(f"emulation {asked!r} is not known; use auto, namespaces or software")
    if asked == "software":
        return "software"
    possible = _kernel_can_shape()
    if asked == "namespaces" and not possible:
        raise ValueError(
            "emulation 'namespaces' needs root on Linux and pyroute2 (pip install 'paceline[lab]')"
        )
    return "namespaces" if possible else "software"


@functools.cache
def _kernel_can_shape() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    return importlib.util.find_spec("pyroute2") is not None and network.can_emulate()


def describe_emulation(emulation: Emulation) -> str:
    """One line for the user: how this lab emulates links."""
    if emulation == "namespaces":
        return "links shaped by the kernel, one network namespace per node"
    return (
        "links emulated in software, inside paceline's teams; other traffic is not slowed "
        "(the kernel shapes links for root on Linux)"
    )


class Lab:
    """An emulated cluster on this machine, to be used as a context manager.

    When it starts, it first removes what labs left behind whose process died.

    Args:
        cluster: Which nodes, workers and links to emulate; :func:`~paceline.lab.layout.lay_out`
            makes one.
        slow: Workers to slow down: a factor for each (node, worker), both counted from 0.
        emulation: How links are emulated: ``"namespaces"`` (by the kernel; root on Linux),
            ``"software"`` (inside paceline's teams), or ``"auto"``.
    """

    def __init__(
        self, cluster: Cluster, *, slow: Slow | None = None, emulation: str = "auto"
    ) -> None:
        self.cluster = cluster
        self.emulation = choose_emulation(emulation)
        self._slow = slow or {}
        self._rates = list(link_rates_bytes_per_s(cluster))
        self._name = new_lab_name()
        self._folder = Path(tempfile.gettempdir(), self._name)
        self._nodes: list[JobNode] = []
        self._network: network.Network | None = None
        self._job_folder: Path | None = None
        self._disk: Disk | None = None
        self._resources = contextlib.ExitStack()
        self._num_jobs = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as building:
            building.enter_context(signals_as_exits())
            sweep()
            self._folder.mkdir()
            building.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if self.emulation == "namespaces":
                self._network = network.Network(self._name, self._rates)
                building.enter_context(self._network)
                namespaces: Sequence[str | None] = self._network.namespaces
                addresses = [network.node_address(i) for i in range(len(namespaces))]
            else:
                building.callback(processes.end_processes, self._name)
                namespaces = [None] * len(self._rates)
                addresses = [_loopback_address(i) for i in range(len(namespaces))]
            self._nodes = [
                JobNode(namespace=namespace, address=address, workers_per_node=num_workers)
                for namespace, address, num_workers in zip(
                    namespaces, addresses, self.cluster.workers_per_node, strict=True
                )
            ]
            self._resources = building.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: IO[str] | None = None,
        events: Sequence[LabEvent] = (),
        faults: Sequence[Fault] = (),
        on_fault: Callable[[str], None] = lambda _: None,
        disk: Path | None = None,
        survive: bool = False,
        silence_s: float = 10.0,
        timeout_s: float = 600.0,
    ) -> Job:
        """Start a command on every worker. Wait for the job before you start the next.

        Args:
            command: The program and its arguments. ``python`` is the interpreter that paceline
                itself runs on.
            environment: Variables to set for the workers.
            output: Where the workers' output goes; by default where this process writes.
            events: What to do at which moment of the job, while it is waited for.
            faults: What goes wrong at which moment; :func:`~paceline.lab.faults.parse_fault` makes
                them from texts such as ``"kill 1:0 at 30s"``.
            on_fault: Called with a few words when a fault has happened, or is over.
            disk: A new or empty folder that becomes a small disk of its own for this job, so that
                a fault can fill it; a fault at the start makes one by itself.
            survive: Start each node on its own, and a meeting beside them, for programs that
                ``attach(survive=True)``: a node that fails is lost, and the others go on. The job
                has succeeded if one node ends well.
            silence_s: With ``survive``, a node without a sign of life for so long is lost.
            timeout_s: With ``survive``, how long nodes wait for one that lives and does not come.
        """
        self._check_faults(faults)
        if any(fault.kind == "start" for fault in faults) and not survive:
            raise ValueError("a node is started again only where the others go on: use --survive")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        if shutil.which(command[0], path=path) is None:
            raise ValueError(
                f"there is no command {command[0]!r} to run; give a program, such as python, "
                "and its arguments after --"
            )
        folder = self._folder / f"job{self._num_jobs}"
        folder.mkdir()
        self._job_folder = folder
        self._num_jobs += 1
        self._disk = self._disk_for(faults, disk)
        job = Job(
            command,
            nodes=self._nodes,
            rendezvous_port=_PORT if self.emulation == "namespaces" else _free_port(),
            folder=folder,
            slow=self._slow,
            environment={**_THREADS, **_QUIET, **self._own_environment(folder), "PATH": path}
            | {name: os.environ[name] for name in (*_THREADS, *_QUIET) if name in os.environ}
            | dict(environment or {}),
            output=output,
            events=events,
            meeting=self._start_meeting(silence_s, timeout_s) if survive else None,
            disk_pid=None if self._disk is None else self._disk.pid,
        )
        self.inject(job, faults, on_fault=on_fault)
        return job

    def inject(
        self,
        job: Job,
        faults: Sequence[Fault],
        *,
        on_fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Make something go wrong while a job is waited for.

        Args:
            job: The job, which runs on this lab.
            faults: What goes wrong at which moment, counted from the job's start
                (``job.elapsed_s``).
            on_fault: Called with a few words when a fault has happened, or is over.
        """
        self._check_faults(faults)
        if any(fault.kind == "fill" for fault in faults) and self._disk is None:
            raise ValueError("start the job with disk=FOLDER, so that there is a disk to fill")
        job.plan(Injection(self, job, self._disk, on_fault).events(faults))

    def _check_faults(self, faults: Sequence[Fault]) -> None:
        if self.emulation == "namespaces":
            return
        for fault in faults:
            if fault.kind == "fill" or (fault.kind == "link" and fault.rate_bytes_per_s is None):
                raise ValueError(
                    f"'{fault.describe()}' needs the kernel: root on Linux, emulation 'namespaces'"
                )

    def _disk_for(self, faults: Sequence[Fault], folder: Path | None) -> Disk | None:
        full = next((fault for fault in faults if fault.kind == "fill"), None)
        if full is not None:
            assert full.folder is not None
            return self._resources.enter_context(Disk(full.folder, full.size_bytes))
        return None if folder is None else self._resources.enter_context(Disk(folder))

    def _start_meeting(self, silence_s: float, timeout_s: float) -> str:
        """Start what outlives nodes, where none of their links leads through."""
        is_shaped = self._network is not None
        port = _MEETING_PORT + self._num_jobs if is_shaped else _free_port()
        address = f"{network.SWITCH_ADDRESS if is_shaped else '127.0.0.1'}:{port}"
        namespace = NO_NAMESPACE if self._network is None else self._network.switch
        meeting = subprocess.Popen(
            [
                *(sys.executable, "-m", "paceline.lab.enter", str(os.getpid())),
                *(namespace, sys.executable, "-m", "paceline", "meet"),
                *(f"--nodes={len(self._nodes)}", f"--listen={address}"),
                *(f"--silence={silence_s}s", f"--timeout={timeout_s}s"),
            ],
            env={**_QUIET, **os.environ, processes.ENVIRONMENT_VARIABLE: self._name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._resources.callback(_end, meeting)
        return address

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: IO[str] | None = None,
        faults: Sequence[Fault] = (),
        survive: bool = False,
    ) -> int:
        """Run a command on every worker and wait for it.

        Args:
            command: The program and its arguments.
            environment: Variables to set for the workers.
            output: Where the workers' output goes; by default where this process writes.
            faults: What goes wrong at which moment, as for :meth:`start`.
            survive: Whether nodes are on their own, as for :meth:`start`.

        Returns:
            The exit code of the first worker that failed, or 0.
        """
        job = self.start(
            command, environment=environment, output=output, faults=faults, survive=survive
        )
        return job.wait()

    def set_rate(self, rate_bytes_per_s: float, *, node: int | None = None) -> None:
        """Change the rate of a node's link, both directions, also while a job runs.

        What a software link has accepted already still arrives at the old rate.

        Args:
            rate_bytes_per_s: The new rate.
            node: Whose link, counted from 0; by default those of all nodes.
        """
        if not rate_bytes_per_s > 0:
            raise ValueError(f"rate_bytes_per_s={rate_bytes_per_s} must be more than 0")
        check_rate(rate_bytes_per_s)
        if node is not None and not 0 <= node < len(self._rates):
            raise ValueError(f"there is no node {node}; nodes 0 to {len(self._rates) - 1} are here")
        nodes = range(len(self._rates)) if node is None else [node]
        for each in nodes:
            self._rates[each] = rate_bytes_per_s
        if self._network is not None:
            self._network.set_rates(dict.fromkeys(nodes, rate_bytes_per_s))
        elif self._job_folder is not None:
            from paceline.teams.emulated import EmulatedLink

            for each in nodes:
                EmulatedLink.at(self._job_folder, each, rate_bytes_per_s).set_rate(rate_bytes_per_s)

    def rate_bytes_per_s(self, node: int) -> float:
        """The rate of a node's link.

        Args:
            node: Whose link, counted from 0.
        """
        return self._rates[node]

    def connect(self, node: int, *, is_up: bool) -> None:
        """Take a node's link down, or up again, also while a job runs.

        Args:
            node: Whose link, counted from 0.
            is_up: Whether it carries anything from now on.
        """
        if self._network is None:
            raise ValueError("a software link cannot be down; the kernel's can, for root on Linux")
        self._network.connect(node, is_up=is_up)

    def _own_environment(self, folder: Path) -> dict[str, str]:
        if self.emulation == "namespaces":
            interface = network.INTERFACE
        else:
            interface = "lo" if sys.platform == "linux" else "lo0"
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        environment = dict.fromkeys(names, interface)
        environment |= {
            processes.ENVIRONMENT_VARIABLE: self._name,
            "PACELINE_LAB": self.emulation,
        }
        if self.emulation == "software":
            from paceline.teams.emulated import ENVIRONMENT_VARIABLE

            links = {"folder": str(folder), "rates_bytes_per_s": self._rates}
            environment[ENVIRONMENT_VARIABLE] = json.dumps(links)
        return environment


def sweep() -> None:
    """Remove what labs left behind whose process died: namespaces, processes, folders."""
    processes.end_orphans()
    if _kernel_can_shape():
        network.sweep()
    for folder in Path(tempfile.gettempdir()).iterdir():
        if is_orphan(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _loopback_address(index: int) -> str:
    """A node's address without namespaces; torchrun orders nodes by it, as text."""
    # Linux answers on all of 127.0.0.0/8, macOS on 127.0.0.1 alone (order is then by process id).
    return (
        f"127.0.{100 + index // 150}.{101 + index % 150}"
        if sys.platform == "linux"
        else "127.0.0.1"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
