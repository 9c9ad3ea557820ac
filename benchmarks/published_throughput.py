"""Predicted against published training throughput: how networks scale on V100 and A100.

python benchmarks/published_throughput.py

Nothing is fitted to these rows: the default jitter follows from others (docs/evidence/steps.md,
"Workers that vary"). The GPUs were not measured: their kernels are carried over from an H200.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.cluster import Cluster, Link, Node, load_cluster, load_device
from paceline.rehearse import predict
from paceline.steps import Step, zoo_step
from paceline.steps.step import MemoryFormat

DATA = Path(__file__).parent / "data"
RESULT = Path(__file__).parent.parent / "docs" / "results" / "published_throughput.json"
BAR = 0.02
# Sources that read images from disks: what they publish beyond this is their input pipeline's.
MOST_IMAGES_PER_S = 6000.0
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "fp16-amp": "fp16"}
# Where a source does not say: NVIDIA's own choices for ResNet-50 (its configs.yml).
USUAL_BATCH = {"V100-SXM2-16GB": 112, "A100-SXM4-80GB": 256}
BERT_TOKENS = 128  # assumed, the source does not say: those of the first phase of its training


def abci(base: Cluster) -> Cluster:
    """ABCI's nodes: four V100, NVLink inside, two EDR InfiniBand cards."""
    node = base.node_kinds[0]
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
    return Cluster(name="abci", node_kinds=(own,))


def one_card(base: Cluster) -> Cluster:
    """A DGX-1 with one EDR InfiniBand card instead of four."""
    node = base.node_kinds[0]
    between = node.between.replace(bandwidth_bytes_per_s=12.5e9)
    return base.replace(node_kinds=(node.replace(between=between),))


def cluster_of(row: dict[str, str]) -> Cluster:
    base = load_cluster("dgx1-v100" if row["gpu"].startswith("V100") else "dgx-a100")
    if row["gpus_per_node"] == "4":
        base = abci(base)
    elif "1x100Gb/s" in row["link"]:
        base = one_card(base)
    num_gpus, per_node = int(row["n_gpus"]), int(row["gpus_per_node"])
    workers = min(num_gpus, per_node)
    return base.with_workers_per_node(workers).with_nodes(max(1, num_gpus // per_node))


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def memory_format_of(row: dict[str, str]) -> MemoryFormat:
    """Channels-last where convolutions run in mixed precision; Lambda's example does not use it."""
    is_mixed = PRECISIONS[row["precision"]] == "fp16" and row["model"] not in (
        "bert-base",
        "vit-b16",
    )
    return "channels_last" if is_mixed and not row["source"].startswith("lambda") else "contiguous"


def make_step(model: str, precision: Any, batch: int, memory_format: MemoryFormat) -> Step:
    step = zoo_step(model, batch=batch, precision=precision, memory_format=memory_format)
    if model != "bert-base":
        return step
    return replace(step, inputs=step.inputs[:, :BERT_TOKENS], targets=step.targets[:, :BERT_TOKENS])


def compare(published: list[dict[str, str]], jitter: float | None) -> list[dict[str, Any]]:
    steps: dict[tuple[str, str, int, MemoryFormat], Step] = {}
    alone: dict[tuple[str, ...], float] = {}
    found = []
    for row in published:
        model, precision = row["model"], PRECISIONS[row["precision"]]
        batch = int(row["batch_per_gpu"] or USUAL_BATCH[row["gpu"]])
        kind = (model, precision, batch, memory_format_of(row))
        if kind not in steps:
            steps[kind] = make_step(*kind)
        step = steps[kind]
        prediction = predict(step, cluster=cluster_of(row), jitter=jitter)
        series = (row["source"], model, row["gpu"], row["precision"], str(batch))
        num_gpus = int(row["n_gpus"])
        per_s = float(row.get("images_per_s") or row["samples_per_s"])
        if num_gpus == 1:
            alone[series] = per_s
        found.append(
            {
                "source": row["source"],
                "model": model,
                "gpu": row["gpu"],
                "precision": row["precision"],
                "num_gpus": num_gpus,
                "batch": batch,
                "published_per_s": per_s,
                "predicted_per_s": prediction.throughput_per_s,
                "published_efficiency": per_s / num_gpus / alone[series],
                "predicted_efficiency": prediction.scaling_efficiency,
            }
        )
    return found


def summarise(found: list[dict[str, Any]]) -> dict[str, float]:
    scaled = [row for row in found if row["num_gpus"] > 1]
    alone = [row for row in found if row["num_gpus"] == 1]
    differences = [row["predicted_efficiency"] - row["published_efficiency"] for row in scaled]
    errors = [row["predicted_per_s"] / row["published_per_s"] - 1 for row in alone]
    few = [row for row in scaled if row["num_gpus"] <= 16]
    fed = [
        row
        for row in few
        if row["published_per_s"] <= MOST_IMAGES_PER_S and "paradl" not in row["source"]
    ]
    return {
        "mean_difference_to_16_gpus": _mean_difference(few),
        "mean_difference_to_16_gpus_fed": _mean_difference(fed),
        "num_rows_fed": len(fed),
        "mean_efficiency_difference": statistics.mean(map(abs, differences)),
        "mean_signed_difference": statistics.mean(differences),
        "worst_efficiency_difference": max(map(abs, differences)),
        "mean_single_gpu_error": statistics.mean(map(abs, errors)),
    }


def _mean_difference(rows_of: list[dict[str, Any]]) -> float:
    return statistics.mean(
        abs(float(row["predicted_efficiency"]) - float(row["published_efficiency"]))
        for row in rows_of
    )


def show(found: list[dict[str, Any]], summary: dict[str, float]) -> None:
    columns = ("source", "model", "GPU", "precision", "batch", "GPUs")
    table = Table(*columns, "published/s", "predicted/s", "eff.", "pred.")
    for row in found:
        table.add_row(
            row["source"],
            row["model"],
            row["gpu"],
            row["precision"],
            str(row["batch"]),
            str(row["num_gpus"]),
            f"{row['published_per_s']:,.0f}",
            f"{row['predicted_per_s']:,.0f}",
            f"{row['published_efficiency']:.2f}",
            f"{row['predicted_efficiency']:.2f}",
        )
    console = Console(width=140)
    console.print(table)
    console.print(summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jitter", type=float, help="another one than the default")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    outcome: dict[str, Any] = {
        "benchmark": "scaling efficiency against published throughput",
        "jitter": arguments.jitter,
    }
    for name, file in (("given", "published_throughput.csv"), ("other", "other_throughput.csv")):
        found = compare(rows(file), arguments.jitter)
        summary = summarise(found)
        show(found, summary)
        outcome[name] = {"summary": summary, "rows": found}
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    is_met = all(
        outcome[name]["summary"]["mean_difference_to_16_gpus_fed"] <= BAR
        for name in ("given", "other")
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
