"""Unequal workers in the lab: 2 nodes x 2 workers, one node half as fast; equal shares, and shares
that follow the speeds.

    python benchmarks/unequal_workers.py --out unequal_workers.json

Every worker stands for a device that takes a fixed time per sample: it sleeps for it, beside the
real training of a small network on the digits. So a speed is what it was set to, on any number of
cores. The ideal step is the global batch over the sum of the speeds. In the last run all workers
are equal at first, and one becomes half as fast in the middle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import paceline
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.zoo import load_data

BATCH, SAMPLE_S = 64, 0.008
NUM_WARM_UP_STEPS, SLOW_RANK = 24, 2
SHARES = ("equal", "measured")


class Device(nn.Module):
    """Takes a fixed time per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.slowdown = 1.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(len(inputs) * SAMPLE_S * self.slowdown)
        return inputs


def train(arguments: argparse.Namespace, workers: paceline.Workers) -> dict[str, Any]:
    torch.manual_seed(0)
    data, device = load_data("digits"), Device()
    model = nn.Sequential(
        device, nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, data.num_classes)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if not arguments.slows_down and workers.node_index == 1:
        device.slowdown = 2.0
    times_s, shares, start = [], [], time.perf_counter()
    with paceline.attach(model, optimizer, arguments.strategy, workers=workers) as pace:
        loader = pace.loader(
            data.train, BATCH, shuffle=True, drop_last=True, shares=arguments.shares
        )
        for _ in range(arguments.epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels))
                optimizer.step()
                now = time.perf_counter()
                times_s.append(now - start)
                shares.append(list(loader.shares))
                start = now
                is_slow = arguments.slows_down and workers.world.rank == SLOW_RANK
                if is_slow and len(times_s) == arguments.slowed_at:
                    device.slowdown = 2.0
    device.slowdown = 0.0
    inputs, labels = next(iter(DataLoader(data.test, batch_size=len(data.test))))
    accuracy = (model.eval()(inputs).argmax(-1) == labels).double().mean().item()
    return {"times_s": times_s, "shares": shares, "accuracy": accuracy}


def run_worker(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    workers = paceline.find_workers()
    found = train(arguments, workers)
    if workers.world.rank == 0:
        arguments.out.write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def ideal_s(slow: float, num_slow: int) -> float:
    return BATCH * SAMPLE_S / (4 - num_slow + num_slow / slow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default="sync,daso")
    parser.add_argument("--strategy", default="sync", help=argparse.SUPPRESS)
    parser.add_argument("--shares", default="measured", help=argparse.SUPPRESS)
    parser.add_argument("--slows-down", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, default=4)
    # The worst moment: too late for the look at the workers' speeds after batch 48.
    parser.add_argument("--slowed-at", type=int, default=45, help="steps before one slows down")
    parser.add_argument("--out", type=Path, default=Path("unequal_workers.json"))
    arguments = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        run_worker(arguments)
        return
    with Lab(lay_out(nodes=2, workers_per_node="2", link="1gbit")) as lab:
        result: dict[str, Any] = {
            "benchmark": "unequal workers",
            "batch": BATCH,
            "sample_s": SAMPLE_S,
            "half_as_fast": [
                _half_as_fast(lab, strategy, arguments)
                for strategy in arguments.strategies.split(",")
            ],
            "slows_down": _slows_down(lab, arguments),
        }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def _run(lab: Lab, arguments: argparse.Namespace, *options: str) -> dict[str, Any]:
    target = arguments.out.with_suffix(".worker.json").resolve()
    command = [sys.executable, str(Path(__file__).resolve()), "--out", str(target), *options]
    command += ["--epochs", str(arguments.epochs), "--slowed-at", str(arguments.slowed_at)]
    lab.run(command)
    found: dict[str, Any] = json.loads(target.read_text())
    target.unlink()
    return found


def _half_as_fast(lab: Lab, strategy: str, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"strategy": strategy, "ideal_s": ideal_s(2.0, 2)}
    for shares in SHARES:
        run = _run(lab, arguments, "--strategy", strategy, "--shares", shares)
        step_s = statistics.mean(run["times_s"][NUM_WARM_UP_STEPS:])
        found[shares] = {
            "step_s": step_s,
            "over_ideal": step_s / found["ideal_s"],
            "accuracy": run["accuracy"],
            "shares": run["shares"][-1],
        }
        print(f"{strategy}, {shares}: {found[shares]}", flush=True)
    return found


def _slows_down(lab: Lab, arguments: argparse.Namespace) -> dict[str, Any]:
    run = _run(lab, arguments, "--slows-down")
    times_s, slowed_at = run["times_s"], arguments.slowed_at
    ideals = {"before": ideal_s(2.0, 0), "after": ideal_s(2.0, 1)}
    bar_s = 1.10 * ideals["after"]
    recovered = next(
        (
            step
            for step in range(slowed_at, len(times_s) - 8)
            if statistics.mean(times_s[step : step + 8]) <= bar_s
        ),
        None,
    )
    found = {
        "ideal_s": ideals,
        "slowed_at": slowed_at,
        "before_s": statistics.mean(times_s[NUM_WARM_UP_STEPS:slowed_at]),
        "worst_s": max(times_s[slowed_at:]),
        "after_s": statistics.mean(times_s[slowed_at + 30 :]),
        "steps_to_recover": None if recovered is None else recovered - slowed_at,
        "num_changes": sum(a != b for a, b in zip(run["shares"], run["shares"][1:], strict=False)),
        "shares": run["shares"][-1],
        "times_s": [round(each, 4) for each in times_s],
    }
    print({key: value for key, value in found.items() if key != "times_s"}, flush=True)
    return found


if __name__ == "__main__":
    main()
