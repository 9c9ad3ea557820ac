"""paceline's ``sync`` against torch's DDP: 4 workers on one machine, links not shaped.

    torchrun --nproc-per-node 4 benchmarks/sync_against_ddp.py --out sync_against_ddp.json

The two take turns, round after round, in the same processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.zoo import build_model, zoo_entry


def make_step(kind: str, name: str, batch: int, workers: paceline.Workers) -> Callable[[], None]:
    torch.manual_seed(0)
    model: nn.Module = build_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        paceline.attach(model, optimizer, "sync", workers=workers)
    inputs = torch.randn(batch, *zoo_entry(name).input_shape)
    targets = torch.randint(0, zoo_entry(name).num_classes, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small-cnn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("sync_against_ddp.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workers = paceline.find_workers()
    kinds = ("sync", "ddp")
    steps = {kind: make_step(kind, arguments.model, arguments.batch, workers) for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_index in range(arguments.rounds + 1):
        for kind, step in steps.items():
            workers.world.agree(0.0)
            start = time.perf_counter()
            for _ in range(arguments.steps):
                step()
            took_s = workers.world.agree((time.perf_counter() - start) / arguments.steps, "max")
            if round_index:  # the first round warms up
                times[kind].append(took_s)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    result = {
        "benchmark": "sync against DDP",
        "workers": workers.world.size,
        "torch": torch.__version__,
        "model": arguments.model,
        "batch": arguments.batch,
        "step_s": medians,
        "spread_s": {kind: [min(values), max(values)] for kind, values in times.items()},
        "sync_over_ddp": medians["sync"] / medians["ddp"],
        "bar": 1.05,
    }
    if workers.world.rank == 0:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        print(f"sync / DDP = {result['sync_over_ddp']:.4f} (bar 1.05), {arguments.out}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
