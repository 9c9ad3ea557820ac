"""DASO's two merge rules against each other and against DDP's mathematics.

    torchrun --nproc-per-node 4 benchmarks/merge_rules.py --out merge_rules.json

Every worker counts as a node of its own. Results wait for their step (late="wait"), so that the
outcome depends on the rule and on B and W alone, and a seed gives the same figures again. Few
epochs: after many, every rule has learnt the digits and nothing tells them apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import paceline
from paceline.teams.workers import form_workers
from paceline.zoo import build_model, load_data

RHYTHMS = ((1, 1), (4, 1), (8, 2), (8, 8), (16, 4), (16, 16), (32, 8), (32, 16))


def train(
    strategy: str, options: dict[str, Any], seed: int, arguments: argparse.Namespace, workers: Any
) -> tuple[float, float]:
    """Test accuracy and test loss of the model that all workers end with."""
    torch.manual_seed(seed)
    data = load_data("digits", seed=seed)
    inputs, targets = data.train.tensors
    model = build_model("small-cnn", width=arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    together = arguments.batch * workers.world.size
    order = torch.Generator().manual_seed(seed)
    with paceline.attach(model, optimizer, strategy, workers=workers, **options):
        for _ in range(arguments.epochs):
            shuffled = torch.randperm(len(inputs), generator=order)
            for begin in range(0, len(inputs) - together + 1, together):
                own = begin + workers.world.rank * arguments.batch
                chosen = shuffled[own : own + arguments.batch]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen])
                torch.autograd.backward(loss)
                optimizer.step()
    model.eval()
    test_inputs, test_targets = data.test.tensors
    with torch.no_grad():
        logits = model(test_inputs)
        accuracy = (logits.argmax(-1) == test_targets).double().mean()
        return float(accuracy), float(nn.functional.cross_entropy(logits, test_targets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("merge_rules.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workers = form_workers([[rank] for rank in range(dist.get_world_size())])

    def measure(strategy: str, options: dict[str, Any]) -> dict[str, float]:
        runs = [
            train(strategy, options, seed, arguments, workers) for seed in range(arguments.seeds)
        ]
        accuracies, losses = zip(*runs, strict=True)
        return {
            "accuracy": statistics.mean(accuracies),
            "accuracy_std": statistics.stdev(accuracies),
            "loss": statistics.mean(losses),
            "loss_std": statistics.stdev(losses),
        }

    rows: list[dict[str, Any]] = [{"strategy": "sync", **measure("sync", {})}]
    for period, delay in RHYTHMS:
        for merge in ("stale", "corrected"):
            options = {
                "period": period,
                "delay": delay,
                "merge": merge,
                "late": "wait",
                "warmup_steps": 4,
            }
            row = {"strategy": "daso", "period": period, "delay": delay, "merge": merge}
            rows.append({**row, **measure("daso", options)})
            if workers.world.rank == 0:
                print(rows[-1], flush=True)
    if workers.world.rank == 0:
        settings = {key: value for key, value in vars(arguments).items() if key != "out"}
        result = {"benchmark": "merge rules", "settings": settings, "nodes": 4, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        for key in ("accuracy", "loss"):
            pairs = [(rows[i][key], rows[i + 1][key]) for i in range(1, len(rows), 2)]
            difference = statistics.mean(corrected - stale for stale, corrected in pairs)
            print(f"{key}: corrected - stale, mean over rhythms: {difference:+.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
