"""A large model on CUDA tensors in the lab: nodes share one GPU, Gloo crosses shaped links.

    python benchmarks/gpu_lab.py --nodes 4 --workers 2 --link 1gbit --out gpu_lab.json

Needs root (namespaces) and a GPU; without one it runs on the CPU, for trying it out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from paceline.lab.entry import Start, entry_maker
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.teams import Workers, find_workers
from paceline.zoo import build_model, zoo_entry

NUM_WARM_UP_STEPS = 3


def time_entry(name: str, arguments: argparse.Namespace, workers: Workers) -> dict[str, object]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = build_model(arguments.model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    # Cycling from the first step on: its pace is what is measured here.
    options = {"warmup_steps": 0, "total_steps": None} if name == "daso" else {}
    start = Start(
        model=model,
        optimizer=optimizer,
        workers=workers,
        num_steps=arguments.steps + NUM_WARM_UP_STEPS,
        options=options,
    )
    entry = entry_maker(name)(start)
    shape = zoo_entry(arguments.model).input_shape
    inputs = torch.randn(arguments.batch, *shape, device=device)
    targets = torch.randint(0, zoo_entry(arguments.model).num_classes, (arguments.batch,)).to(
        device
    )

    def step() -> None:
        entry.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(entry.network(inputs), targets))
        entry.after_backward()
        entry.optimizer.step()
        entry.after_step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(NUM_WARM_UP_STEPS):
        step()
    workers.world.agree(0.0)
    begin = time.perf_counter()
    for _ in range(arguments.steps):
        step()
    step_s = workers.world.agree((time.perf_counter() - begin) / arguments.steps, "max")
    entry.finish()
    return {"name": name, "step_s": step_s}


def work(arguments: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    workers = find_workers()
    results = []
    for name in arguments.entries.split(","):
        results.append(time_entry(name, arguments, workers))
        if workers.world.rank == 0:
            print(results[-1], flush=True)
    if workers.world.rank == 0:
        arguments.out.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--entries", default="floor,daso,sync-hierarchical,ddp")
    parser.add_argument("--out", type=Path, default=Path("gpu_lab.json"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return
    cluster = lay_out(nodes=arguments.nodes, workers=arguments.workers, link=arguments.link)
    with Lab(cluster, emulation="namespaces") as lab:
        code = lab.run([sys.executable, *sys.argv, "--work"])
    if code != 0:
        sys.exit(code)
    results = json.loads(arguments.out.read_text())
    floor_s = next(one["step_s"] for one in results if one["name"] == "floor")
    outcome = {
        "benchmark": "GPU in the lab",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "model": arguments.model,
        "batch": arguments.batch,
        "nodes": arguments.nodes,
        "workers": arguments.workers,
        "link": arguments.link,
        "results": [{**one, "over_floor": one["step_s"] / floor_s} for one in results],
    }
    arguments.out.write_text(json.dumps(outcome, indent=2) + "\n")
    for one in outcome["results"]:
        print(f"{one['name']:>18} {one['step_s'] * 1e3:8.1f} ms  {one['over_floor']:.2f}x floor")


if __name__ == "__main__":
    main()
