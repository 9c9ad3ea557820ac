"""Nodes that are lost and come back: torchrun's agents on this machine, for ``resume.py``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.teams.bound_store import BoundStore

_EXAMPLE = Path(__file__).parents[1] / "examples" / "elastic.py"
_STEP = re.compile(r"step (\d+): (\d+) workers", re.MULTILINE)
_PER_NODE, _TIMEOUT_S, _END_S = 2, 300.0, 1800.0


def lose_nodes(strategy: str, num_losses: int, *, num_epochs: int) -> dict[str, Any]:
    """Train with two nodes, of which one is lost and comes back several times."""
    # Where nodes meet is no node of the job, so any of them can be lost.
    store = BoundStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        job = ["--strategy", strategy, "--folder", f"{folder}/checkpoints"]
        job += ["--epochs", str(num_epochs)]
        logs = [Path(folder, f"agent-{number}") for number in range(2)]
        agents = [_start(job, store.port, log) for log in logs]
        events: list[dict[str, Any]] = []
        try:
            _wait_for_step(logs, 2 * _PER_NODE, events)
            for number in range(num_losses):
                lost = number % 2  # the one whose agent was first, and the other
                _kill(agents[lost])
                _wait_for_step(logs, _PER_NODE, events)
                agents[lost] = _start(job, store.port, logs[lost])
                _wait_for_step(logs, 2 * _PER_NODE, events)
            codes = [agent.wait(_END_S) for agent in agents]
        finally:
            for agent in agents:
                _kill(agent)
        told = "".join(log.read_text() for log in logs)
    accuracies = set(re.findall(r"accuracy ([\d.]+%)", told))
    begins = [int(step) for step in re.findall(r"goes on from step (\d+)", told)]
    return {
        "strategy": strategy,
        "losses": num_losses,
        "returns": num_losses,
        "ended_well": codes == [0, 0],
        "workers_agree": len(accuracies) == 1,
        "accuracy": "/".join(sorted(accuracies)),
        "events": events,
        "began_at": begins,
    }


def _start(job: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    quick = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2"]
    command += [f"--nproc-per-node={_PER_NODE}", "--max-restarts=20", "--monitor-interval=0.1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]
    command += [f"--rdzv-conf=is_host=false,{quick}", "--local-addr=127.0.0.1", str(_EXAMPLE)]
    command += job
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"},
        )


def _kill(agent: subprocess.Popen[bytes]) -> None:
    """Lose a node: its agent and all that it has started."""
    if agent.poll() is not None:
        return
    pids = [agent.pid]
    for pid in pids:
        pids += [int(i) for i in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def _wait_for_step(logs: list[Path], num_workers: int, events: list[dict[str, Any]]) -> None:
    """Wait until so many workers have trained on from where the event before left them."""
    known = [len(_steps(log)) for log in logs]
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        new = [one for log, num in zip(logs, known, strict=True) for one in _steps(log)[num:]]
        for step, found in new:
            if found == num_workers:
                events.append({"workers": num_workers, "step": step})
                return
        time.sleep(0.1)
    told = "\n".join(log.read_text()[-3000:] for log in logs)
    raise TimeoutError(f"{num_workers} workers did not train on:\n{told}")


def _steps(log: Path) -> list[tuple[int, int]]:
    """Steps and numbers of workers, as the first worker of all has told, if it was there."""
    found = [match.groups() for match in _STEP.finditer(log.read_text())]
    return [(int(step), int(workers)) for step, workers in found]
