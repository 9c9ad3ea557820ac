"""Step times side by side in the lab: several entries take turns in the same processes.

    python benchmarks/lab_steps.py --link 100mbit --entries floor,daso --out lab_steps.json
    python benchmarks/lab_steps.py --nodes 4 --model resnet50 --link 1gbit \
        --entries floor,daso,daso:wire=bf16,sync-hierarchical,ddp --rounds 1 --steps 16

Needs root, for namespaces. Uses the GPU where there is one; the nodes then share it, and Gloo
carries CUDA tensors over the shaped links.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.race.entry import Entry, Start, entry_maker
from paceline.teams import Workers, find_workers
from paceline.zoo import build_model, zoo_entry

NUM_WARM_UP_STEPS = 6


def make_entry(spec: str, arguments: argparse.Namespace, workers: Workers) -> Entry:
    name, _, text = spec.partition(":")
    options: dict[str, Any] = dict(pair.split("=") for pair in text.split(";") if pair)
    if name == "daso":
        # Cycling from the first step on, for as long as it is asked for: its pace is measured here.
        options |= {"warmup_steps": 0}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = build_model(arguments.model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    start = Start(
        model=model, optimizer=optimizer, workers=workers, num_steps=10**9, options=options
    )
    return entry_maker(name)(start)


def make_step(entry: Entry, arguments: argparse.Namespace) -> Callable[[], None]:
    zoo = zoo_entry(arguments.model)
    device = next(entry.network.parameters()).device
    inputs = torch.randn(arguments.batch, *zoo.input_shape, device=device)
    targets = torch.randint(0, zoo.num_classes, (arguments.batch,)).to(device)

    def step() -> None:
        entry.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(entry.network(inputs), targets))
        entry.after_backward()
        entry.optimizer.step()
        entry.after_step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def time_round(entry: Entry, step: Callable[[], None], count: int, workers: Workers) -> float:
    workers.world.agree(0.0)
    begin = time.perf_counter()
    for _ in range(count):
        step()
    step_s = workers.world.agree((time.perf_counter() - begin) / count, "max")
    # What is under way must not disturb the next entry's turn.
    entry.finish()
    return step_s


def work(arguments: argparse.Namespace) -> None:
    if torch.cuda.is_available():
        dist.init_process_group("gloo")  # several workers share the GPU, which NCCL refuses
    workers = find_workers()
    specs = arguments.entries.split(",")
    entries = {spec: make_entry(spec, arguments, workers) for spec in specs}
    steps = {spec: make_step(entry, arguments) for spec, entry in entries.items()}
    times: dict[str, list[float]] = {spec: [] for spec in specs}
    for spec in specs:
        time_round(entries[spec], steps[spec], NUM_WARM_UP_STEPS, workers)
    for _ in range(arguments.rounds):
        for spec in specs:
            times[spec].append(time_round(entries[spec], steps[spec], arguments.steps, workers))
    if workers.world.rank == 0:
        Path(os.environ["LAB_STEPS_TIMES"]).write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--model", default="small-cnn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", default="floor,daso")
    parser.add_argument("--out", type=Path, default=Path("lab_steps.json"))
    arguments = parser.parse_args()
    if "LAB_STEPS_TIMES" in os.environ:
        work(arguments)
        return
    cluster = lay_out(
        nodes=arguments.nodes, workers_per_node=arguments.workers, link=arguments.link
    )
    with Lab(cluster, emulation="namespaces") as lab:
        environment = {"LAB_STEPS_TIMES": str(arguments.out.absolute())}
        code = lab.run([sys.executable, *sys.argv], environment=environment)
    if code != 0:
        sys.exit(code)
    times = json.loads(arguments.out.read_text())
    medians = {spec: statistics.median(values) for spec, values in times.items()}
    floor_s = medians.get("floor", float("nan"))
    outcome = {
        "benchmark": "step times in the lab",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "settings": {key: value for key, value in vars(arguments).items() if key != "out"},
        "step_s": medians,
        "spread_s": {spec: [min(values), max(values)] for spec, values in times.items()},
        "over_floor": {spec: step_s / floor_s for spec, step_s in medians.items()},
    }
    arguments.out.write_text(json.dumps(outcome, indent=2) + "\n")
    for spec, step_s in medians.items():
        print(f"{spec:>20} {step_s * 1e3:8.1f} ms  {step_s / floor_s:.3f}x floor")


if __name__ == "__main__":
    main()
