"""Nodes that are killed and come back, over and over, while the others train and save.

    python benchmarks/survive.py
    python benchmarks/survive.py --strategies daso --seconds 300 --seed 7

Three nodes of one worker train with ``survive=True``, save every third step (every other time in
the background) and report a metric. One after another is killed with SIGKILL at a random moment and
started again some seconds later. At the end all must have the same parameters, and nobody may have
stood still for longer than it takes to notice that a node is gone. Needs torchft.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import paceline
from paceline.teams.meeting import MeetingServer, MeetingSettings

STRATEGIES: dict[str, dict[str, Any]] = {
    "local-sgd": {"period": 4},
    "diloco": {"period": 4},
    "daso": {"period": 4, "warmup_steps": 2},
}
NUM_NODES = 3
SILENCE_S = 3.0
PATIENCE_S = 60.0
"""Whoever has not ended by then hangs."""


def train(folder: Path, strategy: str) -> None:
    """One life of a node: until it is killed, or until the step that the file ``last`` names."""
    node = int(os.environ["PACELINE_NODE"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    with paceline.attach(model, optimizer, strategy, survive=True, **STRATEGIES[strategy]) as pace:
        while pace.strategy.step < _last_step(folder):
            draw = torch.Generator().manual_seed(100 * pace.strategy.step + node)
            x = torch.randn(8, 8, generator=draw)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), x[:, :3].argmax(1))
            torch.autograd.backward(loss)
            optimizer.step()
            step = pace.strategy.step
            if step % 3 == 0:
                pace.save(folder / "saves", background=step % 2 == 0)
            if step % 5 == 0:
                pace.report(loss.item())
            _write(folder / f"at-{node}", str(step))
            time.sleep(0.02)
        pace.finish()
    torch.save([each.detach() for each in model.parameters()], folder / f"end-{node}.pt")
    os._exit(0)  # without the interpreter's shutdown


def _last_step(folder: Path) -> int:
    last = folder / "last"
    return int(last.read_text()) if last.exists() else 1 << 30


def _write(path: Path, text: str) -> None:
    """All at once, for those who read it meanwhile."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


class Job:
    """The nodes as their scheduler sees them."""

    def __init__(self, folder: Path, strategy: str, meeting: str) -> None:
        self.folder, self.strategy, self.meeting = folder, strategy, meeting
        self.steps = dict.fromkeys(range(NUM_NODES), 0)
        self.moved = time.monotonic()
        self.longest_pause_s = 0.0
        self.nodes = {node: self._started(node) for node in range(NUM_NODES)}

    def _started(self, node: int) -> subprocess.Popen[bytes]:
        variables = {"PACELINE_MEETING": self.meeting, "PACELINE_NODE": str(node)}
        return subprocess.Popen(
            [sys.executable, __file__, "--node", str(self.folder), self.strategy],
            env=os.environ | variables | {"GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "error"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self, node: int) -> None:
        self.nodes[node].send_signal(signal.SIGKILL)
        self.nodes[node].wait()

    def start_again(self, node: int) -> None:
        self.nodes[node] = self._started(node)

    def watch(self, seconds: float) -> None:
        """For so long, look who trains on."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.is_running():
            for node in range(NUM_NODES):
                place = self.folder / f"at-{node}"
                step = int(place.read_text()) if place.exists() else 0
                if step != self.steps[node]:
                    self.steps[node], self.moved = step, time.monotonic()
            if any(self.steps.values()):
                pause_s = time.monotonic() - self.moved
                self.longest_pause_s = max(self.longest_pause_s, pause_s)
            time.sleep(0.05)

    def is_running(self) -> bool:
        return any(node.poll() is None for node in self.nodes.values())

    def end(self) -> list[int | None]:
        """Let all train a little longer together and end; how they ended."""
        self.watch(4 * SILENCE_S)
        _write(self.folder / "last", str(max(self.steps.values()) + 20))
        self.watch(PATIENCE_S)
        codes = [node.poll() for node in self.nodes.values()]
        for node in self.nodes.values():
            node.kill()
            node.wait()
        return codes


def disturb(strategy: str, seconds: float, chance: random.Random) -> dict[str, Any]:
    """Train, kill, start again; what came of it."""
    settings = MeetingSettings(num_nodes=NUM_NODES, silence_s=SILENCE_S, timeout_s=PATIENCE_S)
    kills = 0
    with tempfile.TemporaryDirectory() as name, MeetingServer(settings) as server:
        folder = Path(name)
        job = Job(folder, strategy, server.address)
        end = time.monotonic() + seconds
        job.watch(4 * SILENCE_S)
        while time.monotonic() < end:
            node = chance.randrange(NUM_NODES)
            job.kill(node)
            kills += 1
            job.watch(chance.uniform(0.0, 2 * SILENCE_S))
            job.start_again(node)
            job.watch(chance.uniform(3 * SILENCE_S, 5 * SILENCE_S))
        codes = job.end()
        made = [folder / f"end-{node}.pt" for node in range(NUM_NODES)]
        ends = [torch.load(each, weights_only=True) for each in made if each.exists()]
    is_equal = len(ends) == NUM_NODES and all(
        torch.equal(own, right) for end in ends for own, right in zip(end, ends[0], strict=True)
    )
    return {
        "strategy": strategy,
        "kills": kills,
        "steps": max(job.steps.values()),
        "all_ended": codes == [0] * NUM_NODES,
        "all_equal": is_equal,
        "longest_pause_s": round(job.longest_pause_s, 1),
    }


def main() -> int:
    """Print a row per strategy; the exit status says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--seconds", type=float, default=70.0, help="of killing, per strategy")
    parser.add_argument("--seed", type=int, help="of nodes and moments; by default random")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--node", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        train(Path(arguments.node[0]), arguments.node[1])
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    rows = []
    for name in arguments.strategies:
        rows.append(disturb(name, arguments.seconds, random.Random(f"{seed}/{name}")))
        if not arguments.json:
            print(", ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"seed": seed, "rows": rows}, indent=2))
    return 0 if all(row["all_ended"] and row["all_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
