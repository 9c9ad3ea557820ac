"""Predicted against measured Gloo all-reduces in the lab, 2 to 4 nodes.

The link of each lab is fitted by ``paceline measure links``; then a new job is predicted with it
and measured. The last column predicts from the link that was fitted on two nodes: what is lost when
a small lab stands for a larger one. Needs a machine that has nothing else to do.

python benchmarks/gloo_allreduce.py [--links 100mbit,1gbit] [--largest "32 MiB"]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.units import parse_size
from paceline.collectives import collective_s
from paceline.collectives.topology import topology_of
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out

RESULT = Path(__file__).parent.parent / "docs" / "results" / "gloo_allreduce.json"
BAR = 0.10
Array = npt.NDArray[np.float64]
NODES = (2, 3, 4)
SMALLEST_BYTES = 64 << 10


def time_all_reduces(out: Path, largest_bytes: int) -> None:
    """What each worker of a measured job runs."""
    import torch.distributed as dist

    from paceline.measure.links import SIZES_BYTES, time_collective_s
    from paceline.teams import find_workers

    world = find_workers().world
    sizes = [size for size in SIZES_BYTES if SMALLEST_BYTES <= size <= largest_bytes]
    times = {size: time_collective_s(world, "all_reduce", size) for size in sizes}
    if world.rank == 0:
        out.write_text(json.dumps(times), "utf-8")
    dist.destroy_process_group()


def run(lab: Lab, command: list[str]) -> None:
    code = lab.run([sys.executable, *command], output=sys.stderr)
    if code != 0:
        raise RuntimeError(f"the job {' '.join(command)} failed with exit code {code}")


def fit_link(link: str, num_nodes: int, largest: str, folder: Path) -> Cluster:
    out = folder / f"{link}-{num_nodes}.toml"
    command = ["-m", "paceline", "measure", "links", "--cluster", "lab-2x2"]
    with Lab(lay_out(nodes=num_nodes, workers_per_node="1", link=link)) as lab:
        run(lab, [*command, "--out", str(out), "--largest", largest])
    return load_cluster(out)


def errors_of(cluster: Cluster, num_nodes: int, times_s: dict[int, float]) -> Array:
    topology = topology_of(cluster.with_nodes(num_nodes))
    predicted_s = collective_s("all_reduce", np.array(list(times_s)), topology, library="gloo")
    ratio: Array = np.asarray(predicted_s) / np.array(list(times_s.values()))
    return ratio - 1


def measure(link: str, num_nodes: int, largest: str, folder: Path) -> dict[int, float]:
    out = folder / f"{link}-{num_nodes}.json"
    with Lab(lay_out(nodes=num_nodes, workers_per_node="1", link=link)) as lab:
        run(lab, [str(Path(__file__).resolve()), "--worker", str(out), "--largest", largest])
    return {int(size): seconds for size, seconds in json.loads(out.read_text("utf-8")).items()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--largest", default="32 MiB")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--worker", type=Path)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        time_all_reduces(arguments.worker, parse_size(arguments.largest))
        return 0

    columns = ("link", "nodes", "sizes", "mean error", "worst", "at", "mean, from 2 nodes")
    table = Table(*columns, title="Gloo all-reduce")
    cases: list[dict[str, Any]] = []
    for link in arguments.links.split(","):
        with tempfile.TemporaryDirectory() as folder:
            labs = {
                num_nodes: (
                    fit_link(link, num_nodes, arguments.largest, Path(folder)),
                    measure(link, num_nodes, arguments.largest, Path(folder)),
                )
                for num_nodes in NODES
            }
        for num_nodes, (fitted, times_s) in labs.items():
            errors = errors_of(fitted, num_nodes, times_s)
            from_two = errors_of(labs[NODES[0]][0], num_nodes, times_s)
            sizes, worst = list(times_s), int(np.argmax(np.abs(errors)))
            case = {
                "link": link,
                "num_nodes": num_nodes,
                "fitted": fitted.node_kinds[0].between.model_dump(mode="json"),
                "num_bytes": sizes,
                "measured_s": list(times_s.values()),
                "errors": errors.tolist(),
                "mean_error": float(np.mean(np.abs(errors))),
                "worst_error": float(errors[worst]),
                "mean_error_from_two_nodes": float(np.mean(np.abs(from_two))),
            }
            cases.append(case)
            table.add_row(
                link,
                str(num_nodes),
                str(len(sizes)),
                f"{case['mean_error']:.1%}",
                f"{errors[worst]:+.1%}",
                f"{sizes[worst] / 1024:.0f} KiB",
                f"{case['mean_error_from_two_nodes']:.1%}",
            )
    mean = float(np.mean([case["mean_error"] for case in cases]))
    console = Console()
    console.print(table)
    console.print(f"all: mean {mean:.1%}, bar {BAR:.0%}")
    result = {"mean_error": mean, "bar": BAR, "within_bar": mean <= BAR, "cases": cases}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    return 0 if mean <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
