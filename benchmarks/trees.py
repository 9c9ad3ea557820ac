"""The logarithmic tree: measured in the lab against its time model, 2 to 8 workers.

The model has two numbers, a message's latency and the link's rate: fitted to all measurements
together, and to two workers alone. Then: how many workers are best for a problem of a given size,
predicted and measured. Each worker's computation is a pause here, since the machine has fewer cores
than workers. Needs a machine that has nothing else to do.

python benchmarks/trees.py [--link 200mbit] [--workers 2,3,4,5,6,7,8]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from paceline.collectives import formulas
from paceline.collectives.topology import Route
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out

RESULT = Path(__file__).parent.parent / "docs" / "results" / "trees.json"
BAR = 0.15
SIZES_BYTES = [1 << exponent for exponent in range(10, 25, 2)]
# Seconds that one worker would compute, and the bytes of the weights.
PROBLEMS = [(0.05, 1 << 16), (0.3, 1 << 16), (0.3, 1 << 18), (1.0, 1 << 18), (2.0, 1 << 20)]


def measure_job(out: Path) -> None:
    """What each worker runs: all sizes by the tree and by Gloo, then the problems."""
    import torch
    import torch.distributed as dist

    from paceline.teams import Team, find_workers, with_collective

    torch.set_num_threads(1)
    workers = find_workers()
    tree, plain = with_collective(workers, "tree").world, workers.world

    def seconds(team: Team, num_bytes: int, pause_s: float = 0.0) -> float:
        """Of one of several in a row, as in training: a link that has rested lets bytes pass."""
        in_a_row = 20 if num_bytes < 1 << 16 else 4 if num_bytes < 1 << 20 else 2
        if num_bytes >= 1 << 24:
            in_a_row = 1
        tensor, times = torch.ones(num_bytes // 4), []
        for _ in range(2 if pause_s or num_bytes >= 1 << 24 else 4):
            plain.barrier()
            start_s = time.perf_counter()
            for _ in range(in_a_row):
                if pause_s:
                    time.sleep(pause_s)
                team.all_reduce(tensor, "sum").wait()
            times.append(plain.agree(time.perf_counter() - start_s, "max") / in_a_row)
        return float(np.median(times))

    seconds(tree, 1 << 12)
    found = {
        "tree_s": [seconds(tree, size) for size in SIZES_BYTES],
        "gloo_s": [seconds(plain, size) for size in SIZES_BYTES],
        "problems_s": [
            seconds(tree, num_bytes, compute_s / plain.size) for compute_s, num_bytes in PROBLEMS
        ],
    }
    if plain.rank == 0:
        out.write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def measure(link: str, num_workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "times.json")
        with Lab(lay_out(nodes=num_workers, workers_per_node="1", link=link)) as lab:
            command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(out)]
            if lab.run(command, output=sys.stderr) != 0:
                raise RuntimeError(f"the job of {num_workers} workers failed")
        return {"num_workers": num_workers, **json.loads(out.read_text("utf-8"))}


def model_s(num_workers: int, fitted: Route) -> Any:
    return formulas.message_tree_all_reduce_s(np.array(SIZES_BYTES, float), num_workers, fitted)


def fit(cases: Sequence[dict[str, Any]]) -> Route:
    """Latency and rate, from the relative errors of all sizes and numbers of workers."""

    def named(logs: Any) -> Route:
        latency_s, rate = np.exp(logs).tolist()
        return Route(latency_s=latency_s, bandwidth_bytes_per_s=rate)

    def errors(logs: Any) -> Any:
        ratios = [model_s(case["num_workers"], named(logs)) / case["tree_s"] for case in cases]
        return np.log(np.concatenate(ratios))

    first = cases[0]["tree_s"]
    found = least_squares(errors, np.log([first[0] / 2, 2 * SIZES_BYTES[-1] / first[-1]]))
    return named(found.x)


def errors_of(cases: Sequence[dict[str, Any]], fitted: Route) -> list[list[float]]:
    return [(model_s(case["num_workers"], fitted) / case["tree_s"] - 1).tolist() for case in cases]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--workers", default="2,3,4,5,6,7,8")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--worker", type=Path)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        measure_job(arguments.worker)
        return 0
    counts = [int(each) for each in arguments.workers.split(",")]
    cases = [measure(arguments.link, count) for count in counts]
    fitted, fitted_on_two = fit(cases), fit(cases[:1])
    for case, errors in zip(cases, errors_of(cases, fitted), strict=True):
        case["errors"] = errors
        print(case["num_workers"], " ".join(f"{error:+.0%}" for error in errors), file=sys.stderr)
    all_errors = np.abs([case["errors"] for case in cases])
    problems = []
    for place, (compute_s, num_bytes) in enumerate(PROBLEMS):
        model = [
            compute_s / count + float(formulas.message_tree_all_reduce_s(num_bytes, count, fitted))
            for count in counts
        ]
        real = [case["problems_s"][place] for case in cases]
        problems.append(
            {
                "compute_s": compute_s,
                "num_bytes": num_bytes,
                "model_s": model,
                "measured_s": real,
                "best_by_model": counts[int(np.argmin(model))],
                "best_measured": counts[int(np.argmin(real))],
                "lost_by_following_the_model": real[int(np.argmin(model))] / min(real) - 1,
            }
        )
    mean = float(np.mean(all_errors))
    result = {
        "link": arguments.link,
        "num_bytes": SIZES_BYTES,
        "fitted": asdict(fitted),
        "fitted_on_two_workers": asdict(fitted_on_two),
        "mean_error": mean,
        "worst_error": float(all_errors.max()),
        "mean_error_from_two_workers": float(np.mean(np.abs(errors_of(cases, fitted_on_two)))),
        "bar": BAR,
        "within_bar": mean <= BAR,
        "cases": cases,
        "problems": problems,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps({key: result[key] for key in ("mean_error", "mean_error_from_two_workers")}))
    return 0 if mean <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
