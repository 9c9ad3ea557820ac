"""``auto`` against fixed choices in the lab, and on a link that changes while it trains.

    python benchmarks/auto.py --nodes 2 --workers 2 --link 100mbit --model small-cnn
    python benchmarks/auto.py --change 1gbit,20mbit,1gbit

All entries take turns in the same processes; figures are medians over the rounds. Each call adds
its part to the results. Needs root, for namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
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

from paceline.cluster.units import parse_bandwidth
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.race.entry import Entry, Start, entry_maker
from paceline.steps import zoo_step
from paceline.teams import Workers, find_workers

FIXED = ("sync", "sync-hierarchical", "local-sgd", "daso")
ENTRIES = ("ddp", *FIXED, "auto")
NUM_WARM_UP_STEPS = 4
NUM_AUTO_STEPS = 96  # 12 measured, and some looks at what was chosen
TURN_S = 1.5
LEAST_STEPS, MOST_STEPS = 8, 64
# Where every step is the same, a slow link need not be waited for that often.
LEAST_EQUAL_STEPS, EQUAL = 2, ("ddp", "sync", "sync-hierarchical")
STEPS_BETWEEN_CHANGES = 90
UNSHAPED = "10gbit"


def make_entry(name: str, model: str, batch: int, workers: Workers) -> tuple[Entry, Any]:
    torch.manual_seed(0)
    step = zoo_step(model, batch=batch, device="cpu")
    optimizer = step.make_optimizer(step.model.parameters())
    start = Start(
        model=step.model, optimizer=optimizer, workers=workers, num_steps=10**9, options={}
    )
    entry = entry_maker(name)(start)

    def run() -> None:
        entry.optimizer.zero_grad()
        torch.autograd.backward(step.compute_loss(entry.network, step.inputs, step.targets))
        entry.after_backward()
        entry.optimizer.step()
        entry.after_step()

    return entry, run


def take_turn(entry: Entry, run: Callable[[], None], count: int, workers: Workers) -> float:
    """Seconds per step, the slowest worker's."""
    workers.world.agree(0.0)
    begin = time.perf_counter()
    for _ in range(count):
        run()
    step_s = workers.world.agree((time.perf_counter() - begin) / count, "max")
    # What is under way must not disturb the next entry's turn.
    entry.finish()
    return step_s


def decisions_of(entry: Entry) -> list[str]:
    found: list[str] = entry._pace.strategy.decisions  # type: ignore[attr-defined]
    return found


def compare(arguments: argparse.Namespace, workers: Workers) -> dict[str, Any]:
    made = {name: make_entry(name, arguments.model, arguments.batch, workers) for name in ENTRIES}
    counts, times = {}, {name: list[float]() for name in ENTRIES}
    for name, (entry, run) in made.items():
        num_steps = NUM_AUTO_STEPS if name == "auto" else NUM_WARM_UP_STEPS
        take_turn(entry, run, num_steps, workers)
        least = LEAST_EQUAL_STEPS if name in EQUAL else LEAST_STEPS
        step_s = take_turn(entry, run, least, workers)
        counts[name] = min(MOST_STEPS, least * max(1, round(TURN_S / step_s / least)))
    for _ in range(arguments.rounds):
        for name, (entry, run) in made.items():
            times[name].append(take_turn(entry, run, counts[name], workers))
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(FIXED, key=lambda name: medians[name])
    return {
        "step_s": medians,
        "spread_s": {name: [min(values), max(values)] for name, values in times.items()},
        "steps_per_round": counts,
        "rounds": arguments.rounds,
        "best_fixed": best,
        # Round by round: what else the machine does changes more slowly than entries take turns.
        "auto_over_best_fixed": _ratio(times["auto"], times[best]),
        "auto_over_ddp": _ratio(times["auto"], times["ddp"]),
        "decisions": decisions_of(made["auto"][0]),
    }


def _ratio(times_s: list[float], others_s: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(times_s, others_s, strict=True))


def follow(arguments: argparse.Namespace, workers: Workers) -> dict[str, Any]:
    """Train with auto alone; the lab changes the link when it sees the step's number."""
    entry, run = make_entry("auto", arguments.model, arguments.batch, workers)
    progress = Path(os.environ["AUTO_PROGRESS"])
    num_steps = STEPS_BETWEEN_CHANGES * len(arguments.change.split(","))
    steps_s = []
    for number in range(1, num_steps + 1):
        begin = time.perf_counter()
        run()
        steps_s.append(time.perf_counter() - begin)
        if number % STEPS_BETWEEN_CHANGES == 0 and number < num_steps:
            # All wait until the lab has changed the links.
            if workers.world.rank == 0:
                progress.write_text(str(number))
                while progress.exists():
                    time.sleep(0.01)
            workers.world.barrier()
    entry.finish()
    lines = decisions_of(entry)
    at = [int(line.partition("step ")[2].partition(":")[0]) for line in lines]
    changes = range(STEPS_BETWEEN_CHANGES, num_steps, STEPS_BETWEEN_CHANGES)
    after = [next((step - change for step in at if step > change), None) for change in changes]
    return {"decisions": lines, "steps_until_followed": after, "steps_s": steps_s}


def work(arguments: argparse.Namespace) -> None:
    workers = find_workers()
    outcome = (follow if arguments.change else compare)(arguments, workers)
    if workers.world.rank == 0:
        Path(os.environ["AUTO_OUTCOME"]).write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--link", default="100mbit", help="or 'unshaped'")
    parser.add_argument("--model", default="small-cnn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--change", default="", help="links one after another, as 1gbit,20mbit")
    parser.add_argument("--out", type=Path, default=Path("docs/results/auto.json"))
    arguments = parser.parse_args()
    if "AUTO_OUTCOME" in os.environ:
        work(arguments)
        return
    links = arguments.change.split(",") if arguments.change else [arguments.link]
    rates = [UNSHAPED if link == "unshaped" else link for link in links]
    cluster = lay_out(nodes=arguments.nodes, workers_per_node=str(arguments.workers), link=rates[0])
    outcome_file = arguments.out.absolute().with_suffix(".part")
    progress = arguments.out.absolute().with_suffix(".progress")
    environment = {"AUTO_OUTCOME": str(outcome_file), "AUTO_PROGRESS": str(progress)}
    left = rates[1:]
    with Lab(cluster, emulation="namespaces") as lab:

        def look() -> None:
            with contextlib.suppress(FileNotFoundError):
                progress.read_text()
                lab.set_rate(parse_bandwidth(left.pop(0)))
                progress.unlink()

        code = lab.start([sys.executable, *sys.argv], environment=environment).wait(on_poll=look)
    if code != 0:
        sys.exit(code)
    outcome = json.loads(outcome_file.read_text())
    outcome_file.unlink()
    settings = {
        "nodes": arguments.nodes,
        "workers_per_node": arguments.workers,
        "model": arguments.model,
        "batch": arguments.batch,
        "links": links,
    }
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    results |= {"benchmark": "auto against fixed choices in the lab", "torch": torch.__version__}
    others = [each for each in results.get("parts", []) if each["settings"] != settings]
    results["parts"] = [*others, {"settings": settings, **outcome}]
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({"settings": settings, **outcome}, indent=1)[:3000])


if __name__ == "__main__":
    main()
