"""What attaching costs on one GPU: ResNet-50, one NCCL rank, against a plain step.

    torchrun --nproc-per-node 1 benchmarks/hook_overhead.py --out hook_overhead.json

The three ways take turns, round after round, so that clocks and temperature treat them alike.
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


def make_step(kind: str, name: str, batch: int, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    model: nn.Module = build_model(name).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "sync":
        paceline.attach(model, optimizer, "sync")
    inputs = torch.randn(batch, *zoo_entry(name).input_shape, device=device)
    targets = torch.randint(0, zoo_entry(name).num_classes, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()

    return step


def time_steps(step: Callable[[], None], count: int, device: torch.device) -> float:
    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    settle()
    start = time.perf_counter()
    for _ in range(count):
        step()
    settle()
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("hook_overhead.json"))
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    paceline.find_workers()
    kinds = ("plain", "sync", "ddp")
    steps = {kind: make_step(kind, arguments.model, arguments.batch, device) for kind in kinds}
    for step in steps.values():
        time_steps(step, 5, device)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        for kind, step in steps.items():
            times[kind].append(time_steps(step, arguments.steps, device))
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    result = {
        "benchmark": "hook overhead",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": arguments.model,
        "batch": arguments.batch,
        "step_s": medians,
        "spread_s": {kind: [min(values), max(values)] for kind, values in times.items()},
        "sync_over_plain": medians["sync"] / medians["plain"],
        "ddp_over_plain": medians["ddp"] / medians["plain"],
        "bar": 1.02,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"sync / plain = {result['sync_over_plain']:.4f} (bar 1.02), {arguments.out}")


if __name__ == "__main__":
    main()
