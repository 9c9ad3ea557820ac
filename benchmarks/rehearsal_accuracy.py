"""Predicted against measured steps in the lab, for several layouts, links, models and strategies.

    python benchmarks/rehearsal_accuracy.py --out rehearsal_accuracy.json
    python benchmarks/rehearsal_accuracy.py --again rehearsal_accuracy.json

Each job measures its links and its workers first (what `paceline measure links` does), then trains
with every entry, a few seconds with each in turn and several times round, so that a machine that
gets slower for a while does so for all of them. Strategies whose order is not clear by then go on
for more rounds. The steps are then predicted from the measured
cluster and the kernel profile of this machine. ``--again`` predicts anew what was measured before.
Needs root, for namespaces, and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from paceline.cluster import Cluster, dump_cluster, load_cluster, parse_cluster
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.measure.known_step import known_step
from paceline.measure.links import measure_links, measured_cluster
from paceline.measure.workers import measure_workers
from paceline.race.entry import Entry, Start, entry_maker
from paceline.rehearse import predict
from paceline.steps import Step, zoo_step
from paceline.teams import Workers, find_workers

LAYOUTS = ("2x1", "2x2", "4x1", "3x2")
LINKS = ("50mbit", "200mbit", "1gbit")
MODELS = {"small-cnn": 32, "small-gpt": 16}
ENTRIES = ("ddp", "sync", "local-sgd", "daso")
# Cycling from the first step on: its pace is measured here, not that of the first four steps.
OPTIONS: dict[str, dict[str, Any]] = {"daso": {"warmup_steps": 0}}
PERIODS = {"ddp": 1, "sync": 1, "local-sgd": 8, "daso": 4}
ROUNDS, MOST_ROUNDS = 6, 20
# One strategy is faster than another if it is by so many standard errors.
CLEAR_ERRORS = 3.0
TURN_S = 1.5
SIZES_BYTES = tuple(2**power for power in (12, 14, 16, 18, 20, 21, 22, 23))
RESULT = "REHEARSAL_OUT"
"""The variable that tells a worker where to write."""
MEAN_BAR, WORST_BAR = 0.10, 0.20


def make_step(model: str) -> Step:
    return zoo_step(model, batch=MODELS[model])


def make_entry(name: str, step: Step, workers: Workers) -> Entry:
    torch.manual_seed(0)
    optimizer = step.make_optimizer(step.model.parameters())
    start = Start(
        model=step.model,
        optimizer=optimizer,
        workers=workers,
        num_steps=10**9,
        options=OPTIONS.get(name, {}),
    )
    return entry_maker(name)(start)


def training_step(entry: Entry, step: Step) -> Callable[[], None]:
    def run() -> None:
        entry.optimizer.zero_grad()
        torch.autograd.backward(step.compute_loss(entry.network, step.inputs, step.targets))
        entry.after_backward()
        entry.optimizer.step()
        entry.after_step()

    return run


@dataclass
class Turns:
    """An entry that trains when it is its turn."""

    entry: Entry
    run: Callable[[], None]
    period: int
    workers: Workers
    num_periods: int = 1
    steps_s: list[float] = field(default_factory=list)
    """Seconds a step, of each turn."""

    def take(self) -> None:
        """Train for a whole number of periods, after one that makes up for the break."""
        self._periods_s(1)
        self.steps_s.append(self._periods_s(self.num_periods) / self.num_periods / self.period)

    def warm_up(self) -> None:
        """Let connections open and find out how long a turn is."""
        self._periods_s(1)
        self.num_periods = max(1, round(TURN_S / self._periods_s(1)))

    def _periods_s(self, count: int) -> float:
        """Seconds until the last worker is through; nobody waits for another in between."""
        self.workers.world.agree(0.0)
        begun = time.perf_counter()
        for _ in range(count * self.period):
            self.run()
        return self.workers.world.agree(time.perf_counter() - begun, "max")


def time_entries(names: list[str], model: str, workers: Workers) -> dict[str, list[float]]:
    """Seconds a step of each entry, once for each of its turns."""
    turns = {}
    for name in names:
        step = real_step(model)
        entry = make_entry(name, step, workers)
        turns[name] = Turns(entry, training_step(entry, step), PERIODS[name], workers)
        turns[name].warm_up()
    taking_part = set(turns)
    for number in range(1, MOST_ROUNDS + 1):
        for name in names:
            if name in taking_part:
                turns[name].take()
        if number >= ROUNDS:
            taking_part = unclear({name: own.steps_s for name, own in turns.items()})
    for own in turns.values():
        own.entry.finish()
    return {name: own.steps_s for name, own in turns.items()}


def by_how_much(one: list[float], other: list[float]) -> tuple[float, float]:
    """How much longer the first takes, in the rounds that both took part in; and its error.

    The median of the rounds, and its standard error by how far they are from it: a round that
    something disturbed hardly counts.
    """
    more = [a / b - 1 for a, b in zip(one, other, strict=False)]
    median = statistics.median(more)
    deviation = 1.4826 * statistics.median(abs(each - median) for each in more)
    return median, math.sqrt(math.pi / 2) * deviation / math.sqrt(len(more))


def unclear(steps_s: dict[str, list[float]]) -> set[str]:
    """Strategies of which the rounds so far do not say which one is faster."""
    found: set[str] = set()
    for pair in combinations([name for name in steps_s if name != "ddp"], 2):
        more, error = by_how_much(steps_s[pair[0]], steps_s[pair[1]])
        if abs(more) < CLEAR_ERRORS * error:
            found.update(pair)
    return found


def real_step(model: str) -> Step:
    """The step with values in it; a captured one has shapes alone."""
    return zoo_step(model, batch=MODELS[model], device="cpu")


def mean_of(one: Any, other: Any) -> Any:
    """The mean of two measurements: of numbers, and of what is made of them."""
    if one is None:
        return None
    if not is_dataclass(one):
        return (one + other) / 2
    names = [each.name for each in fields(one)]
    means = {name: mean_of(getattr(one, name), getattr(other, name)) for name in names}
    return replace(one, **means)  # type: ignore[type-var]


def work(out: Path, models: list[str], entries: list[str]) -> None:
    """What each worker of a job runs."""
    workers = find_workers()
    base = load_cluster("lab-2x2")
    links = measure_links(workers, sizes_bytes=SIZES_BYTES)
    device = base.node_kinds[0].device.name
    times, clusters = {}, {}
    for model in models:
        step = known_step(real_step(model), device)
        before = measure_workers(workers, device=device, step=step)
        times[model] = time_entries(entries, model, workers)
        # The machine's speed drifts: what was measured before and after it counts.
        met = mean_of(before, measure_workers(workers, device=device, step=step))
        clusters[model] = dump_cluster(
            measured_cluster(base, workers.node_sizes, links, workers=met)
        )
    if workers.world.rank == 0:
        result = {"clusters": clusters, "step_s": times}
        out.write_text(json.dumps(result), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


def measure(layout: str, link: str, out: Path) -> dict[str, Any]:
    """What this same script wrote, run by all workers of a lab."""
    nodes, workers = layout.split("x")
    part = out.with_suffix(f".{layout}.{link}.json").absolute()
    with Lab(lay_out(nodes=int(nodes), workers_per_node=workers, link=link)) as lab:
        command = [sys.executable, *sys.argv]
        code = lab.run(command, environment={RESULT: str(part)}, output=sys.stderr)
    if code != 0:
        raise RuntimeError(f"the job of {layout} at {link} failed with exit code {code}")
    result: dict[str, Any] = json.loads(part.read_text("utf-8"))
    part.unlink()
    return {"layout": layout, "link": link, **result}


def predicted_s(
    entry: str, step: Step, cluster: Cluster, model_file: Path | None
) -> tuple[float, dict[str, float]]:
    name = "sync" if entry == "ddp" else entry
    found = predict(
        step, cluster=cluster, strategy=name, kernel_model=model_file, **OPTIONS.get(name, {})
    )
    parts = {
        "compute_s": found.compute_s + found.host_s,
        "communication_s": found.exposed_communication_s,
    }
    return found.step_s, parts


def compare(measured: list[dict[str, Any]], model_file: Path | None) -> list[dict[str, Any]]:
    steps: dict[str, Step] = {}
    rows = []
    for case in measured:
        for model, entries in case["step_s"].items():
            cluster = parse_cluster(case["clusters"][model], "measured")
            step = steps.setdefault(model, make_step(model))
            for entry, rounds in entries.items():
                wanted = statistics.median(rounds)  # a turn that something disturbed is left out
                found, parts = predicted_s(entry, step, cluster, model_file)
                rows.append(
                    {
                        "layout": case["layout"],
                        "link": case["link"],
                        "model": model,
                        "entry": entry,
                        "measured_s": wanted,
                        "spread": (max(rounds) - min(rounds)) / wanted,
                        "rounds_s": rounds,
                        "predicted_s": found,
                        "error": found / wanted - 1,
                        **parts,
                    }
                )
    return rows


def wrong_orders(rows: list[dict[str, Any]]) -> list[str]:
    """Pairs of strategies of which the wrong one was predicted to be faster.

    Beside each, by how much the one is slower that was to be faster, with the standard error.
    """
    wrong = []
    cases: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["entry"] != "ddp":  # predicted as sync, which it is
            cases.setdefault((row["layout"], row["link"], row["model"]), []).append(row)
    for case, own in cases.items():
        by_prediction = sorted(own, key=lambda row: row["predicted_s"])
        for fast, slow in combinations(by_prediction, 2):
            more, error = by_how_much(fast["rounds_s"], slow["rounds_s"])
            if more > 0:
                num_rounds = min(len(fast["rounds_s"]), len(slow["rounds_s"]))
                wrong.append(
                    f"{' '.join(case)}: {fast['entry']} takes {more:.1%} +- {error:.1%} longer "
                    f"than {slow['entry']} over {num_rounds} rounds, and was predicted to take "
                    f"{1 - fast['predicted_s'] / slow['predicted_s']:.1%} less"
                )
    return wrong


def show(rows: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    table = Table("layout", "link", "model", "entry", "measured", "spread", "predicted", "error")
    for row in rows:
        table.add_row(
            row["layout"],
            row["link"],
            row["model"],
            row["entry"],
            f"{row['measured_s'] * 1e3:.1f} ms",
            f"{row['spread']:.0%}",
            f"{row['predicted_s'] * 1e3:.1f} ms",
            f"{row['error']:+.1%}",
        )
    console = Console(width=110)
    console.print(table)
    console.print(summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--links", default=",".join(LINKS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--entries", default=",".join(ENTRIES))
    parser.add_argument("--model-file", type=Path, help="what `paceline fit` wrote")
    parser.add_argument("--again", type=Path, help="predict what this file has measured")
    parser.add_argument("--out", type=Path, default=Path("rehearsal_accuracy.json"))
    arguments = parser.parse_args()
    if RESULT in os.environ:
        out = Path(os.environ[RESULT])
        work(out, arguments.models.split(","), arguments.entries.split(","))
        return 0
    if arguments.again:
        measured = json.loads(arguments.again.read_text("utf-8"))["measured"]
    else:
        measured = []
        for layout in arguments.layouts.split(","):
            for link in arguments.links.split(","):
                measured.append(measure(layout, link, arguments.out))
                arguments.out.write_text(json.dumps({"measured": measured}), "utf-8")
    rows = compare(measured, arguments.model_file)
    errors = [abs(row["error"]) for row in rows]
    summary = {
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
        "mean_error_by_entry": {
            entry: statistics.mean(abs(row["error"]) for row in rows if row["entry"] == entry)
            for entry in dict.fromkeys(row["entry"] for row in rows)
        },
        "wrong_orders": wrong_orders(rows),
    }
    show(rows, summary)
    outcome = {
        "benchmark": "predicted and measured steps in the lab",
        "torch": torch.__version__,
        "summary": summary,
        "rows": rows,
        "measured": measured,
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    is_met = summary["mean_error"] <= MEAN_BAR and summary["worst_error"] <= WORST_BAR
    return 0 if is_met and not summary["wrong_orders"] else 1


if __name__ == "__main__":
    sys.exit(main())
