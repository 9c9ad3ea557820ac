"""Real torchrun agents: a node is killed, the job goes on without it and takes it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

import elastic_job
from elastic_job import BATCH, NUM_EPOCHS, NUM_SAMPLES, NUM_STEPS

_TIMEOUT_S = 100.0

Line = list[Any]
"""Step, number of workers, epoch, samples, rank."""


class Agents:
    """torchrun's agents, each standing for a node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        # Where nodes meet is no node of the job, so any of them can be lost.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self) -> subprocess.Popen[bytes]:
        """One more node."""
        quick = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2"]
        command += ["--nproc-per-node=1", "--max-restarts=5", "--monitor-interval=0.1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._store.port}"]
        command += ["--rdzv-id=job", f"--rdzv-conf=is_host=false,{quick}"]
        command += ["--local-addr=127.0.0.1", elastic_job.__file__, str(self._folder), "sync"]
        with (self._folder / f"agent-{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                # With it, torch 2.13 tells a node that joins later nobody's address.
                env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            )
        self._processes.append(process)
        return process

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """Lose a node: its agent and all that it has started."""
        pids = [agent.pid]
        for pid in pids:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            pids += [int(child) for child in children.read_text().split()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        agent.wait()

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until something has happened, while at least one agent lives."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not what():
            is_anybody_left = any(each.poll() is None for each in self._processes)
            assert is_anybody_left and time.monotonic() < deadline, self.told()
            time.sleep(0.05)

    def told(self) -> str:
        """What the agents and their workers have said."""
        return "\n".join(path.read_text()[-4000:] for path in self._folder.glob("agent-*"))

    def end(self) -> None:
        """Leave nobody behind."""
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)


@contextmanager
def agents_in(folder: Path) -> Iterator[Agents]:
    agents = Agents(folder)
    try:
        yield agents
    finally:
        agents.end()


def lines(folder: Path) -> list[Line]:
    """What all workers have recorded, in the order in which files were last written."""
    paths = sorted(folder.glob("record-*"), key=lambda path: path.stat().st_mtime_ns)
    texts = [line for path in paths for line in path.read_text().splitlines()]
    return [json.loads(text) for text in texts if text.endswith("]")]


def allow(folder: Path, limit: int) -> None:
    (folder / "limit.draft").write_text(str(limit))
    (folder / "limit.draft").replace(folder / "limit")


def reference() -> dict[str, torch.Tensor]:
    """One process with the whole global batch."""
    model, optimizer, data = elastic_job.build()
    for epoch in range(NUM_EPOCHS):
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(3 + epoch))
        for batch in order.view(-1, BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(model(data.tensors[1][batch]).square().mean())
            optimizer.step()
    return dict(model.state_dict())


def test_a_lost_node_is_survived_and_taken_back(tmp_path: Path) -> None:
    allow(tmp_path, 0)
    with agents_in(tmp_path) as agents:
        stays, goes = agents.start(), agents.start()
        agents.wait_for(lambda: any(line[:2] == [-1, 2] for line in lines(tmp_path)))
        allow(tmp_path, 5)
        agents.wait_for(lambda: any(line[:2] == [4, 2] for line in lines(tmp_path)))
        agents.kill(goes)
        allow(tmp_path, 11)
        agents.wait_for(lambda: any(line[:2] == [10, 1] for line in lines(tmp_path)))
        returned = agents.start()
        agents.wait_for(lambda: any(line[:2] == [10, 2] for line in lines(tmp_path)))
        allow(tmp_path, NUM_STEPS)
        agents.wait_for(lambda: (tmp_path / "end.pt").exists())
        agents.wait_for(lambda: stays.poll() is not None or returned.poll() is not None)
        assert (stays.wait(_TIMEOUT_S), returned.wait(_TIMEOUT_S)) == (0, 0), agents.told()

    recorded = [line for line in lines(tmp_path) if line[0] >= 0]
    sizes = {size: [step for step, each, *_ in recorded if each == size] for size in (1, 2)}
    # Two workers, then one from the last save on, then two again.
    assert min(sizes[1]) in (2, 4) and max(sizes[1]) == 10
    assert max(sizes[2]) == NUM_STEPS - 1
    last: dict[int, int] = {}
    for step, size, *_ in recorded:
        last[step] = size
    kept = [line for line in recorded if line[1] == last[line[0]]]
    seen = Counter({(epoch, i) for _, _, epoch, indices, _ in kept for i in indices})
    assert len(seen) == NUM_EPOCHS * NUM_SAMPLES
    for step in range(NUM_STEPS):
        # The global batch is the same, whoever computes it, and nobody computes a sample twice.
        by_rank = {line[4]: line[3] for line in kept if line[0] == step}
        batch = [index for indices in by_rank.values() for index in indices]
        assert len(batch) == len(set(batch)) == BATCH, (step, by_rank)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    for name, value in reference().items():
        torch.testing.assert_close(end[name], value, rtol=1e-5, atol=1e-6)
