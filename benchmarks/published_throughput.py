"""Predicted against published training throughput: how ResNet-50 scales on V100 and A100.

python benchmarks/published_throughput.py

Nothing is fitted to these rows but the default jitter of a cluster (see docs/benchmarks.md). The
GPUs were not measured: their kernels are carried over from an H200.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.cluster import Cluster, Link, Node, load_cluster, load_device
from paceline.rehearse import predict
from paceline.steps import Step, zoo_step

DATA = Path(__file__).parent / "data" / "published_throughput.csv"
RESULT = Path(__file__).parent.parent / "docs" / "results" / "published_throughput.json"
BAR = 0.06
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "fp16-amp": "fp16"}
# Where a source does not say: what fits into a V100 of 16 GB, and NVIDIA's own choice for an A100.
USUAL_BATCH = {"V100-SXM2-16GB": 128, "A100-SXM4-80GB": 256}


def abci(base: Cluster) -> Cluster:
    """ABCI's nodes: four V100, NVLink inside, two EDR InfiniBand cards."""
    node = base.nodes[0]
    own = Node(
        name="abci",
        count=1,
        workers=4,
        device=load_device("v100"),
        inside=node.inside.replace(bandwidth_bytes_per_s=node.inside.bandwidth_bytes_per_s),
        between=Link(
            latency_s=node.between.latency_s, bandwidth_bytes_per_s=2 * 12.5e9, shared=True
        ),
    )
    return Cluster(name="abci", nodes=(own,))


def cluster_of(row: dict[str, str]) -> Cluster:
    base = load_cluster("dgx1-v100" if row["gpu"].startswith("V100") else "dgx-a100")
    if row["gpus_per_node"] == "4":
        base = abci(base)
    num_gpus, per_node = int(row["n_gpus"]), int(row["gpus_per_node"])
    workers = min(num_gpus, per_node)
    return base.with_workers(workers).with_nodes(max(1, num_gpus // per_node))


def rows() -> Iterator[dict[str, str]]:
    with DATA.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def compare(jitter: float | None) -> list[dict[str, Any]]:
    steps: dict[tuple[str, int], Step] = {}
    alone: dict[tuple[str, ...], float] = {}
    found = []
    for row in rows():
        precision = PRECISIONS[row["precision"]]
        batch = int(row["batch_per_gpu"] or USUAL_BATCH[row["gpu"]])
        if (precision, batch) not in steps:
            # Mixed precision is trained in channels-last by all of the sources that use it.
            layout = "channels_last" if precision == "fp16" else "contiguous"
            steps[precision, batch] = zoo_step(
                row["model"],
                batch=batch,
                precision=precision,  # type: ignore[arg-type]
                memory_format=layout,  # type: ignore[arg-type]
            )
        prediction = predict(steps[precision, batch], cluster=cluster_of(row), jitter=jitter)
        series = (row["source"], row["gpu"], row["precision"])
        num_gpus, published = int(row["n_gpus"]), float(row["images_per_s"])
        if num_gpus == 1:
            alone[series] = published
        found.append(
            {
                "source": row["source"],
                "gpu": row["gpu"],
                "precision": row["precision"],
                "num_gpus": num_gpus,
                "batch": batch,
                "published_per_s": published,
                "predicted_per_s": prediction.throughput_per_s,
                "published_efficiency": published / num_gpus / alone[series],
                "predicted_efficiency": prediction.scaling_efficiency,
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jitter", type=float, help="another one than the default")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    found = compare(arguments.jitter)
    scaled = [row for row in found if row["num_gpus"] > 1]
    alone = [row for row in found if row["num_gpus"] == 1]
    differences = [row["predicted_efficiency"] - row["published_efficiency"] for row in scaled]
    errors = [row["predicted_per_s"] / row["published_per_s"] - 1 for row in alone]
    summary = {
        "mean_efficiency_difference": statistics.mean(map(abs, differences)),
        "mean_signed_difference": statistics.mean(differences),
        "worst_efficiency_difference": max(map(abs, differences)),
        "mean_single_gpu_error": statistics.mean(map(abs, errors)),
    }
    columns = ("source", "GPU", "precision", "GPUs", "published/s", "predicted/s", "eff.", "pred.")
    table = Table(*columns)
    for row in found:
        table.add_row(
            row["source"],
            row["gpu"],
            row["precision"],
            str(row["num_gpus"]),
            f"{row['published_per_s']:,.0f}",
            f"{row['predicted_per_s']:,.0f}",
            f"{row['published_efficiency']:.2f}",
            f"{row['predicted_efficiency']:.2f}",
        )
    console = Console(width=120)
    console.print(table)
    console.print(summary)
    outcome = {
        "benchmark": "scaling efficiency of ResNet-50 against published throughput",
        "jitter": arguments.jitter,
        "summary": summary,
        "rows": found,
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    return 0 if summary["mean_efficiency_difference"] <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
