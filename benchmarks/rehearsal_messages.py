"""Predicted against measured steps of strategies that send messages from worker to worker.

    python benchmarks/rehearsal_messages.py --out rehearsal_messages.json

The strategies are nobody's: a ring in which everybody sends to the next one, and neighbours that
swap, each with the whole model at every step. Those that send before they receive are carried
otherwise by Gloo than those that receive first. Links and workers are measured first, as in
rehearsal_accuracy.py. Needs root, for namespaces, and a quiet machine.
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
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from paceline import attach
from paceline.cluster import dump_cluster, load_cluster, parse_cluster
from paceline.measure.known_step import known_step
from paceline.measure.links import measure_links, measured_cluster
from paceline.measure.workers import measure_workers
from paceline.rehearse import predict
from paceline.steps import zoo_step
from paceline.strategies import Strategy
from paceline.teams import Workers, find_workers
from rehearsal_accuracy import RESULT, SIZES_BYTES, mean_of, measure, real_step

MODEL, BATCH = "small-gpt", 16
ROUNDS, STEPS = 5, 12


class Gossip(Strategy):
    """Takes the mean of its own parameters and those that another worker sends."""

    sends_first = True

    def peers(self) -> tuple[int, int]:
        """Whom this worker sends to, and whom it receives from: in a ring."""
        world = self.workers.world
        return (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def after_step(self) -> None:
        super().after_step()
        world = self.workers.world
        target, source = self.peers()
        own = torch.cat([parameter.data.flatten() for parameter in self.replica.parameters])
        other = torch.empty_like(own)
        pendings = [
            world.send(own, target) if is_sent else world.receive(other, source)
            for is_sent in (self.sends_first, not self.sends_first)
        ]
        for pending in pendings:
            self.wait(pending)
        own.add_(other).div_(2)
        done = 0
        for parameter in self.replica.parameters:
            part = own[done : done + parameter.numel()]
            parameter.data.copy_(part.view_as(parameter))
            done += parameter.numel()


class Swap(Gossip):
    """Neighbours swap, now with the one to the right and now with the one to the left."""

    def peers(self) -> tuple[int, int]:
        world = self.workers.world
        step = 1 if (world.rank + self.step) % 2 else -1
        peer = (world.rank + step) % world.size
        return peer, peer


class SwapReceiveFirst(Swap):
    """The same, receiving first."""

    sends_first = False


STRATEGIES: dict[str, type[Strategy]] = {
    "ring": Gossip,
    "swap, send first": Swap,
    "swap, receive first": SwapReceiveFirst,
}


def work(out: Path) -> None:
    """What each worker of a job runs."""
    workers = find_workers()
    base = load_cluster("lab-2x2")
    device = base.node_kinds[0].device.name
    links = measure_links(workers, sizes_bytes=SIZES_BYTES)
    step = known_step(real_step(MODEL), device)
    before = measure_workers(workers, device=device, step=step)
    times = time_strategies(workers)
    met = mean_of(before, measure_workers(workers, device=device, step=step))
    cluster = measured_cluster(base, workers.node_sizes, links, workers=met)
    if workers.world.rank == 0:
        out.write_text(json.dumps({"cluster": dump_cluster(cluster), "rounds_s": times}), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


def time_strategies(workers: Workers) -> dict[str, list[float]]:
    """Seconds a step of each strategy, in turns, once for each of its turns."""
    world = workers.world
    runs, times = {}, dict[str, list[float]]()
    for name, kind in STRATEGIES.items():
        step = real_step(MODEL)
        optimizer = step.make_optimizer(step.model.parameters())
        attach(step.model, optimizer, kind(), workers=workers)
        runs[name] = (step, optimizer)
        times[name] = []
    for number in range(ROUNDS + 1):
        for name, (step, optimizer) in runs.items():
            world.agree(0.0)
            begun = time.perf_counter()
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = step.compute_loss(step.model, step.inputs, step.targets)
                torch.autograd.backward(loss)
                optimizer.step()
            took_s = world.agree(time.perf_counter() - begun, "max") / STEPS
            if number:  # the first time connections open
                times[name].append(took_s)
    return times


def compare(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    step = zoo_step(MODEL, batch=BATCH)
    rows = []
    for case in measured:
        cluster = parse_cluster(case["cluster"], "measured")
        for name, rounds in case["rounds_s"].items():
            measured_s = statistics.median(rounds)
            predicted_s = predict(step, cluster=cluster, strategy=STRATEGIES[name]()).step_s
            rows.append(
                {
                    "layout": case["layout"],
                    "link": case["link"],
                    "strategy": name,
                    "measured_s": measured_s,
                    "predicted_s": predicted_s,
                    "error": predicted_s / measured_s - 1,
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", default="2x1,4x1,2x2")
    parser.add_argument("--links", default="200mbit,1gbit")
    parser.add_argument("--out", type=Path, default=Path("rehearsal_messages.json"))
    arguments = parser.parse_args()
    if RESULT in os.environ:
        work(Path(os.environ[RESULT]))
        return 0
    measured = [
        measure(layout, link, arguments.out)
        for layout in arguments.layouts.split(",")
        for link in arguments.links.split(",")
    ]
    rows = compare(measured)
    table = Table("layout", "link", "strategy", "measured", "predicted", "error")
    for row in rows:
        seconds = (f"{row[key] * 1e3:.1f} ms" for key in ("measured_s", "predicted_s"))
        table.add_row(row["layout"], row["link"], row["strategy"], *seconds, f"{row['error']:+.1%}")
    Console(width=110).print(table)
    outcome = {
        "benchmark": "predicted and measured steps of strategies that send messages",
        "torch": torch.__version__,
        "mean_error": statistics.mean(abs(row["error"]) for row in rows),
        "rows": rows,
        "measured": measured,
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
