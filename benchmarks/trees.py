"""The logarithmic tree: measured in the lab against its time model, 2 to 8 workers.

The model has what is physically there: a message's latency, of which a part is computing that waits
for a core where workers are more than cores; the link's rate, and what it lets pass at once after a
rest; and adding. Rate and latency are fitted to all measurements together, and to two workers
alone; cores, burst and the speed of adding are known or measured beforehand. Then: how many workers
are best for a problem of a given size, predicted and measured. Each worker's computation is a pause
here, since the machine may have fewer cores than workers. Needs a machine that has nothing else to
do, and about four minutes.

python benchmarks/trees.py [--link 200mbit] [--workers 2,3,4,5,6,7,8] [--emulation namespaces]

Without root, `--direct` measures over the machine's own loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from paceline.collectives import formulas
from paceline.collectives.topology import Route
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out, link_rates_bytes_per_s

RESULT = Path(__file__).parent.parent / "docs" / "results" / "trees.json"
BAR = 0.15
SIZES_BYTES = [1 << exponent for exponent in range(10, 25, 2)]
# Seconds that one worker would compute, and the bytes of the weights.
PROBLEMS = [(0.05, 1 << 16), (0.3, 1 << 16), (0.3, 1 << 18), (1.0, 1 << 18), (2.0, 1 << 20)]


@dataclass(frozen=True, kw_only=True)
class Model:
    """T(P, n); the first two numbers are fitted."""

    latency_s: float
    bandwidth_bytes_per_s: float
    host_share: float
    """Of the latency: what is computed, and waits for a core where workers are more than cores."""
    num_cores: int
    combine_bytes_per_s: float
    burst_bytes: float

    def seconds(self, num_workers: int, num_bytes: Any) -> Any:
        host_s = self.host_share * self.latency_s
        return formulas.message_tree_all_reduce_s(
            num_bytes,
            num_workers,
            Route(
                latency_s=self.latency_s - host_s, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s
            ),
            combine_bytes_per_s=self.combine_bytes_per_s,
            host_s=host_s,
            num_cores=self.num_cores,
            burst_bytes=self.burst_bytes,
        )

    def errors(self, cases: Sequence[dict[str, Any]]) -> Any:
        sizes = np.array(SIZES_BYTES, float)
        return np.array([self.seconds(c["num_workers"], sizes) / c["tree_s"] - 1 for c in cases])


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
        is_long = pause_s or num_bytes >= 1 << 24
        for _ in range(2 if is_long else 7 if num_bytes < 1 << 20 else 4):
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
    plain.barrier()
    dist.destroy_process_group()


def measure(num_workers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "times.json")
        own = [str(Path(__file__).resolve()), "--worker", str(out)]
        if arguments.direct:
            launch = ["-m", "torch.distributed.run", "--standalone"]
            command = [sys.executable, *launch, f"--nproc-per-node={num_workers}", *own]
            code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        else:
            layout = lay_out(nodes=num_workers, workers_per_node="1", link=arguments.link)
            with Lab(layout, emulation=arguments.emulation) as lab:
                code = lab.run([sys.executable, *own], output=sys.stderr)
        if code != 0:
            raise RuntimeError(f"the job of {num_workers} workers failed")
        return {"num_workers": num_workers, **json.loads(out.read_text("utf-8"))}


def measure_combine() -> float:
    """Bytes per second at which one core adds a tensor to another."""
    import torch

    torch.set_num_threads(1)
    one, other, times = torch.ones(1 << 22), torch.ones(1 << 22), []
    for _ in range(9):
        start_s = time.perf_counter()
        one.add_(other)
        times.append(time.perf_counter() - start_s)
    return one.nbytes / float(np.median(times))


def burst_of(arguments: argparse.Namespace) -> float:
    """What the lab's links let pass at once; those of the loopback and in software have no rest."""
    from paceline.lab.lab import choose_emulation

    if arguments.direct or choose_emulation(arguments.emulation) == "software":
        return 0.0
    from paceline.lab.namespaces import burst_bytes

    layout = lay_out(nodes=2, workers_per_node="1", link=arguments.link)
    return float(burst_bytes(next(iter(link_rates_bytes_per_s(layout)))))


def fit(cases: Sequence[dict[str, Any]], known: dict[str, Any]) -> Model:
    """Latency, rate and host's share, from the relative errors of all sizes and workers."""
    is_crowded = any(case["num_workers"] > known["num_cores"] for case in cases)

    def named(values: Any) -> Model:
        share = float(1 / (1 + np.exp(-values[2]))) if is_crowded else 1.0
        latency_s, rate = np.exp(values[:2]).tolist()
        return Model(latency_s=latency_s, bandwidth_bytes_per_s=rate, host_share=share, **known)

    first = cases[0]["tree_s"]
    start = [np.log(first[0] / 2), np.log(2 * SIZES_BYTES[-1] / first[-1]), 1.0]
    found = least_squares(
        lambda values: np.log1p(named(values).errors(cases)).ravel(), start, loss="soft_l1"
    )
    return named(found.x)


def best_numbers(
    cases: Sequence[dict[str, Any]], counts: Sequence[int], model: Model
) -> list[dict[str, Any]]:
    """For each problem: T(P) as predicted and measured, and the best P of both."""
    problems = []
    for place, (compute_s, num_bytes) in enumerate(PROBLEMS):
        told = [compute_s / count + float(model.seconds(count, num_bytes)) for count in counts]
        real = [case["problems_s"][place] for case in cases]
        problems.append(
            {
                "compute_s": compute_s,
                "num_bytes": num_bytes,
                "model_s": told,
                "measured_s": real,
                "best_by_model": counts[int(np.argmin(told))],
                "best_measured": counts[int(np.argmin(real))],
                "lost_by_following_the_model": real[int(np.argmin(told))] / min(real) - 1,
            }
        )
    return problems


def report(result: dict[str, Any]) -> None:
    """Errors by size and number of workers, then the problems."""
    names = [f"{n >> 10} KiB" if n < 1 << 20 else f"{n >> 20} MiB" for n in SIZES_BYTES]
    print("workers ", *(f"{name:>9}" for name in names))
    for case in result["cases"]:
        print(f"{case['num_workers']:8}", *(f"{error:+9.0%}" for error in case["errors"]))
    print("mean    ", *(f"{error:9.0%}" for error in result["mean_error_by_size"]))
    for each in result["problems"]:
        print(
            f"{each['compute_s']:g} s alone, {each['num_bytes'] >> 10} KiB: best by the model "
            f"{each['best_by_model']}, measured {each['best_measured']}, lost by following it "
            f"{each['lost_by_following_the_model']:.0%}"
        )
    print(
        f"mean error {result['mean_error']:.1%}, worst {result['worst_error']:.0%}; from two "
        f"workers alone {result['mean_error_from_two_workers']:.1%}; bar {BAR:.0%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", default="200mbit")
    parser.add_argument("--workers", default="2,3,4,5,6,7,8")
    parser.add_argument("--emulation", default="auto")
    parser.add_argument("--direct", action="store_true", help="no lab: this machine's loopback")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--worker", type=Path)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        measure_job(arguments.worker)
        return 0
    counts = [int(each) for each in arguments.workers.split(",")]
    known = {
        "num_cores": len(os.sched_getaffinity(0)),
        "combine_bytes_per_s": measure_combine(),
        "burst_bytes": burst_of(arguments),
    }
    cases = [measure(count, arguments) for count in counts]
    model, from_two = fit(cases, known), fit(cases[:1], known)
    errors = model.errors(cases)
    for case, own in zip(cases, errors.tolist(), strict=True):
        case["errors"] = own
    mean = float(np.abs(errors).mean())
    result = {
        "link": "loopback" if arguments.direct else arguments.link,
        "num_bytes": SIZES_BYTES,
        "model": vars(model),
        "model_from_two_workers": vars(from_two),
        "mean_error": mean,
        "worst_error": float(np.abs(errors).max()),
        "mean_error_by_size": np.abs(errors).mean(0).tolist(),
        "mean_error_from_two_workers": float(np.abs(from_two.errors(cases)).mean()),
        "bar": BAR,
        "within_bar": mean <= BAR,
        "cases": cases,
        "problems": best_numbers(cases, counts, model),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    report(result)
    return 0 if mean <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
