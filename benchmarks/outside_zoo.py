"""How far predictions are off for networks of the kinds that users bring, on the H200.

    python benchmarks/outside_zoo.py                       # compare with the stored measurements
    python benchmarks/outside_zoo.py --measure steps.json  # on a machine with a GPU: measure anew

Networks that need transformers or torchvision are left out where these are not installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.cluster.device import Precision
from paceline.kernels.library import load_kernel_model
from paceline.measure.real_step import measure_step
from paceline.rehearse.compute import compute_cost
from paceline.steps import capture_step
from user_networks import NETWORKS, make_step

STORED = Path(__file__).parents[1] / "docs/results/user_networks_h200.json"
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
BUSY = 0.9  # of a step: below that the host limits it


def measure(path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for name, (_, batches, _) in NETWORKS.items():
        for precision in PRECISIONS:
            step = make_step(name, batches[0], precision, device="cuda")
            facts = {"network": name, "batch": batches[0], "precision": precision}
            rows.append(facts | asdict(measure_step(step, rounds=3, target_s=0.1)))
            print(rows[-1], flush=True)
            del step
            gc.collect()
            torch.cuda.empty_cache()
    machine = torch.cuda.get_device_name()
    path.write_text(
        json.dumps({"benchmark": "user_networks", "machine": machine, "steps": rows}, indent=1)
    )


def compare() -> list[dict[str, Any]]:
    model = load_kernel_model("h200")
    found = []
    for row in json.loads(STORED.read_text())["steps"]:
        try:
            capture = capture_step(make_step(row["network"], row["batch"], row["precision"]))
        except ImportError as problem:
            print(f"{row['network']} is left out: {problem}")
            continue
        cost = compute_cost(capture, model)
        found.append(
            {
                "network": row["network"],
                "precision": row["precision"],
                "limit": "device" if row["busy_s"] > BUSY * row["step_s"] else "host",
                "step_s": row["step_s"],
                "step_error": cost.timeline.step_s / row["step_s"] - 1,
                "memory_error": cost.memory_bytes / row["peak_bytes"] - 1,
                "uncertainty": cost.uncertainty,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    rows = compare()
    print("| network | precision | limit | real step | error | range | memory |")
    print("|---|---|---|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['network']} | {row['precision']} | {row['limit']} "
            f"| {row['step_s'] * 1e3:.1f} ms | {row['step_error']:+.1%} "
            f"| ±{row['uncertainty']:.0%} | {row['memory_error']:+.1%} |"
        )
    busy = [row for row in rows if row["limit"] == "device"]
    errors = [abs(row["step_error"]) for row in busy]
    memory = [abs(row["memory_error"]) for row in rows]
    inside = sum(abs(row["step_error"]) <= row["uncertainty"] for row in busy)
    print(
        f"Where the device limits: mean {statistics.mean(errors):.1%}, worst {max(errors):.1%}, "
        f"{inside} of {len(busy)} inside the range. Memory: mean {statistics.mean(memory):.1%}, "
        f"worst {max(memory):.1%}."
    )


if __name__ == "__main__":
    main()
