"""Every parser, and the command line, with inputs made to break it.

nice -n 19 python benchmarks/fuzz.py --inputs 100000 --out fuzz.json

Inputs are mutations of valid ones. A parser may read an input or refuse it with a sentence
(ValueError; the command line: exit code 2). Anything else is a finding, and so is an input that
takes longer than a few seconds. The exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fuzzing import Target, mutated, targets

MOST_FINDINGS = 20
SLOW_S = 5.0


def fuzz(target: Target, num_inputs: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Try so many inputs; how many were read and refused, and what else happened."""
    chance = random.Random(f"{seed} {target.name}")
    outcomes: Counter[str] = Counter()
    findings: dict[str, dict[str, str]] = {}
    slowest_s = 0.0
    task = progress.add_task(target.name, total=num_inputs)
    for number in range(num_inputs):
        data = target.seeds[number] if number < len(target.seeds) else mutated(chance, target)
        begun_s = time.process_time()
        try:
            outcomes[target.outcome(data)] += 1
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as problem:  # also SystemExit: a parser does not end the process
            outcomes["findings"] += 1
            place = traceback.extract_tb(problem.__traceback__)[-1]
            where = f"{type(problem).__name__} at {Path(place.filename).name}:{place.lineno}"
            if where not in findings and len(findings) < MOST_FINDINGS:
                findings[where] = {"problem": str(problem)[:300], "input": repr(data[:2000])}
        took_s = time.process_time() - begun_s
        slowest_s = max(slowest_s, took_s)
        if took_s > SLOW_S:
            findings.setdefault("slow", {"problem": f"{took_s:.0f} s", "input": repr(data[:2000])})
        if number % 100 == 99:
            progress.update(task, completed=number + 1)
    progress.remove_task(task)
    return {
        "parser": target.name,
        "inputs": num_inputs,
        **{name: outcomes[name] for name in ("read", "refused", "findings")},
        "slowest_s": slowest_s,
        "examples": findings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each parser")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of parsers, or their beginnings"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON object to this file")
    arguments = parser.parse_args()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    results = []
    with (
        TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder,
        Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress,
    ):
        for target in targets(Path(folder)):
            if not arguments.only or target.name.startswith(tuple(arguments.only)):
                results.append(fuzz(target, arguments.inputs, arguments.seed, progress))
                progress.console.print(_line(results[-1]), markup=False, highlight=False)
    found = {"benchmark": "fuzz", "seed": arguments.seed, "parsers": results}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(results)
    sys.exit(1 if any(result["examples"] for result in results) else 0)


def _line(result: dict[str, Any]) -> str:
    return f"{result['parser']}: {result['inputs']:,} inputs, {len(result['examples'])} findings"


def show(results: list[dict[str, Any]]) -> None:
    """Print the table, and an example of each finding."""
    console = Console(markup=False)
    table = Table("parser", "inputs", "read", "refused", "findings", "slowest")
    for result in results:
        counts = (f"{result[name]:,}" for name in ("inputs", "read", "refused", "findings"))
        table.add_row(result["parser"], *counts, f"{1e3 * result['slowest_s']:.0f} ms")
    console.print(table)
    for result in results:
        for where, example in result["examples"].items():
            console.print(f"{result['parser']}: {where}: {example['problem']}", highlight=False)
            console.print(f"  {example['input'][:300]}", highlight=False)


if __name__ == "__main__":
    main()
