"""DASO against its peers: same model, data, seeds and epochs, in the lab.

    python benchmarks/peers.py --links 100mbit,1gbit --seeds 3 --out peers.json

Needs root, for namespaces, and ``pip install 'paceline[peers]'``. Prints a table for each link.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paceline.lab.layout import lay_out
from paceline.race.peers import PEERS
from paceline.race.race import run_race
from paceline.race.task import RaceSettings

OURS = ("daso", "sync-hierarchical", "local-sgd", "diloco", "streaming-diloco")


def run_entry(link: str, name: str, settings: RaceSettings) -> dict[str, Any]:
    """One entry's run; torchft sometimes aborts when it leaves, and then runs once more."""
    for attempt in (1, 2, 3):
        try:
            with TemporaryDirectory() as folder:
                layout, target = lay_out(link=link), Path(folder)
                return run_race(layout, [name], settings, folder=target, predict=False).results[0]
        except RuntimeError as problem:
            print(f"{link}: {name}, attempt {attempt}: {problem}", file=sys.stderr, flush=True)
            if attempt == 3:
                raise
    raise AssertionError


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; no time to the target unless every seed reached it."""
    reached = [run["time_to_target_s"] for run in runs]
    return {
        "step_s": statistics.mean(run["step_s"] for run in runs),
        "waiting_share": statistics.mean(run["waiting_share"] for run in runs),
        "bytes_between_nodes": statistics.mean(run["bytes_between_nodes"] for run in runs),
        "accuracy": statistics.mean(run["accuracy"] for run in runs),
        "accuracies": [run["accuracy"] for run in runs],
        "time_to_target_s": None if None in reached else statistics.mean(reached),
        "times_to_target_s": reached,
    }


def print_table(link: str, results: dict[str, dict[str, Any]]) -> None:
    print(f"\n{link}\n| entry | step | between nodes | accuracy | time to target |")
    print("|---|--:|--:|--:|--:|")
    for name, row in sorted(results.items(), key=lambda item: item[1]["step_s"]):
        reached = row["time_to_target_s"]
        print(
            f"| {name} | {row['step_s'] * 1e3:.0f} ms | {row['bytes_between_nodes'] / 1e6:.0f} MB "
            f"| {row['accuracy']:.1%} | {'–' if reached is None else f'{reached:.1f} s'} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--entries", default=",".join(("ddp", *OURS, *PEERS, "floor")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("peers.json"))
    arguments = parser.parse_args()
    names = arguments.entries.split(",")
    outcome: dict[str, Any] = {
        "benchmark": "peers",
        "torch": torch.__version__,
        "settings": {key: value for key, value in vars(arguments).items() if key != "out"},
        "links": {},
    }
    for link in arguments.links.split(","):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            settings = RaceSettings(
                model="small-cnn",
                data="digits",
                epochs=arguments.epochs,
                batch=32,
                learning_rate=0.05,
                target=arguments.target,
                seed=seed,
            )
            for name in names:
                runs[name].append(run_entry(link, name, settings))
            outcome["links"][link] = {name: summarise(results) for name, results in runs.items()}
            # After every seed, so that a run cut short keeps what it measured.
            arguments.out.write_text(json.dumps(outcome, indent=2) + "\n")
            print(f"{link}: seed {seed} done", file=sys.stderr, flush=True)
        print_table(link, outcome["links"][link])


if __name__ == "__main__":
    main()
