"""How far off the predicted ratio of compiled to eager steps is, on the H200.

    python benchmarks/compiled_steps.py                        # compare with stored measurements
    python benchmarks/compiled_steps.py --measure out.json resnet50@128 denoiser@64

Steps are in bf16, with `torch.compile(model)` in its default mode; loss and optimizer are eager.
Hosts differ, so the ratio is also predicted with the host as fast as the one that was measured:
its eager steps say how fast that is.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from paceline.kernels.library import load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.measure.real_step import measure_step
from paceline.rehearse.compiled import compile_step
from paceline.rehearse.compute import Compute, compute_cost
from paceline.steps import Capture, Step, capture_step, zoo_step
from user_networks import NETWORKS, make_step

STORED = Path(__file__).parents[1] / "docs/results/compiled_steps.json"
BAR = 0.08


def step_of(network: str, batch: int, *, device: str = "meta") -> Step:
    if network in NETWORKS:
        return make_step(network, batch, "bf16", device=device)
    return zoo_step(network, batch=batch, precision="bf16", device=device)


def measure(path: Path, names: list[str]) -> None:
    rows = []
    for name in names:
        network, _, batch = name.partition("@")
        row: dict[str, Any] = {"network": network, "batch": int(batch), "precision": "bf16"}
        for mode in ("eager", "compiled"):
            step = step_of(network, int(batch), device="cuda")
            if mode == "compiled":
                step = replace(step, model=cast(nn.Module, torch.compile(step.model)))
            row[mode] = asdict(measure_step(step))
            del step
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()
        rows.append(row)
        print(row, flush=True)
    facts = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    path.write_text(json.dumps({"benchmark": "compiled_steps", **facts, "steps": rows}, indent=1))


def ratio(eager: Compute, compiled: Compute, *, host: float) -> float:
    """Of the step times, with a host that issues so many times as fast."""
    seconds = [
        max(each.timeline.device_s, each.timeline.host_s / host) for each in (compiled, eager)
    ]
    return seconds[0] / seconds[1]


def compare() -> list[dict[str, Any]]:
    model = load_kernel_model("h200")
    stored = json.loads(STORED.read_text())["steps"]
    pairs = [_costs(row, model) for row in stored]
    faster = statistics.median(
        eager.timeline.host_s / row["eager"]["host_s"]
        for row, (eager, _) in zip(stored, pairs, strict=True)
    )
    print(f"The measured host issues eager steps {faster:.2f} times as fast as the model's.\n")
    return [
        {
            "network": f"{row['network']}@{row['batch']}",
            "looked_at": row["looked_at"],
            "measured": row["compiled"]["step_s"] / row["eager"]["step_s"],
            "predicted": ratio(eager, compiled, host=1.0),
            "same_host": ratio(eager, compiled, host=faster),
            "device": compiled.timeline.device_s / row["compiled"]["busy_s"] - 1,
        }
        for row, (eager, compiled) in zip(stored, pairs, strict=True)
    ]


def _costs(row: dict[str, Any], model: KernelModel) -> tuple[Compute, Compute]:
    step = step_of(row["network"], row["batch"])
    captures: tuple[Capture, Capture] = capture_step(step), compile_step(step)
    return compute_cost(captures[0], model), compute_cost(captures[1], model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("networks", nargs="*")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.networks)
        return
    rows = compare()
    print("| network | looked at | measured | predicted | host as measured | device time |")
    print("|---|---|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['network']} | {'yes' if row['looked_at'] else 'no'} | {row['measured']:.2f} "
            f"| {row['predicted']:.2f} | {row['same_host']:.2f} | {row['device']:+.0%} |"
        )
    for column in ("predicted", "same_host"):
        errors = [abs(row[column] - row["measured"]) for row in rows]
        inside = sum(error <= BAR for error in errors)
        print(
            f"{column}: {inside} of {len(rows)} within {BAR}, mean {statistics.mean(errors):.3f}, "
            f"worst {max(errors):.3f}"
        )


if __name__ == "__main__":
    main()
