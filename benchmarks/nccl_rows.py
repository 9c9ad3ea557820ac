"""The published tables of benchmarks/nccl_tables.py, and predictions of their rows."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.cluster import Link, load_cluster
from paceline.collectives import Topology, nccl
from paceline.collectives.topology import topology_of

DATA = Path(__file__).parent / "data"
LARGE_BYTES = 2**20
SMALL_BYTES = 4096
Array = npt.NDArray[np.float64]

IN_NODE = {
    "a100_sxm": "dgx-a100",
    "h100_sxm": "dgx-h100",
    "b200_sxm": "dgx-b200",
    "l40s": "aws-g6e",
    "vTrain a100": "dgx-a100",
    "vTrain v100": "dgx1-v100",
}
BETWEEN = {
    "p4de": "aws-p4de",
    "p4dn": "aws-p4d",
    "a3-mega": "gcp-a3-mega",
    "h100 infiniband": "dgx-h100",
    "p5": "aws-p5",
    "oci a100": "oci-a100",
    "a4": "gcp-a4",
    "p6-b200": "aws-p6-b200",
    "rtx3090 roce": "ethernet-100g",
    "h200 roce": "dgx-h200",
    "oci h200": "oci-h100",
    "h100 bond": "dgx-h100",
    "h100 16 nodes": "dgx-h100",
    "p6-b300": "aws-p6-b300",
    "rtx3060 roce": "ethernet-100g",
    "h100 two of eight": "dgx-h100",
}
# Neither a constant nor a figure of a preset was taken from these.
UNSEEN = (
    "h200 roce",
    "oci h200",
    "h100 bond",
    "h100 16 nodes",
    "p6-b300",
    "rtx3060 roce",
    "h100 two of eight",
)
# Workstations with one GPU and one card each have no preset.
ROCE = Link(latency_s=5.7e-6, bandwidth_bytes_per_s=12.5e9, efficiency=0.91, shared=True)
FITTED = ("p4de", "a3-mega", "h100 infiniband", "p5", "oci a100", "a4", "rtx3090 roce")


@dataclass(frozen=True)
class Row:
    system: str
    kind: str
    nodes: int
    workers: int
    num_bytes: float
    measured_s: float


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@cache
def in_node_rows() -> tuple[Row, ...]:
    """One row for each system, collective, number of GPUs and size: the median of all runs.

    int8 all-reduces are left out where the switch adds up: it cannot add int8, and nobody trains
    with it.
    """
    times: dict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    for row in _rows("nccl_in_node.csv"):
        if row["op"] == "all_reduce" and row["dtype"] == "int8":
            continue
        key = (row["system"], row["op"], int(row["num_gpus"]), float(row["bytes"]))
        times[key].append(float(row["time_us"]) * 1e-6)
    for row in _rows("nccl_allreduce.csv"):
        key = (f"vTrain {row['gpu']}", "all_reduce", int(row["ranks"]), float(row["bytes"]))
        times[key].append(float(row["time_us"]) * 1e-6)
    return tuple(
        Row(system, kind, 1, workers, size, statistics.median(found))
        for (system, kind, workers, size), found in times.items()
    )


@cache
def between_rows() -> tuple[Row, ...]:
    found = []
    for row in _rows("nccl_between_nodes.csv"):
        system = next(name for name in BETWEEN if name in row["gpu"])
        if int(row["nodes"]) > 1:
            found.append(_between_row(system, "all_reduce", row))
    for row in _rows("nccl_public_tables.csv"):
        found.append(_between_row(row["system"], row["op"], row))
    return tuple(found)


def _between_row(system: str, kind: str, row: Mapping[str, str]) -> Row:
    nodes, workers = int(row["nodes"]), int(row["gpus_per_node"])
    return Row(system, kind, nodes, workers, float(row["bytes"]), float(row["time_us"]) * 1e-6)


def between_topology(system: str) -> Topology:
    """As built in."""
    cluster = load_cluster(BETWEEN[system])
    if system.endswith("roce") and system.startswith("rtx"):
        (node,) = cluster.node_kinds
        cluster = cluster.replace(node_kinds=(node.replace(between=ROCE),))
    return topology_of(cluster)


def predict_s(
    rows: Sequence[Row], topologies: Mapping[str, Topology], constants: nccl.Constants
) -> Array:
    """Seconds of each row."""
    found = np.empty(len(rows))
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row.system, row.kind == "all_reduce"].append(place)
    for (system, is_all_reduce), places in groups.items():
        some = [rows[place] for place in places]
        where = replace(
            topologies[system],
            num_nodes=np.array([row.nodes for row in some]),
            workers_per_node=np.array([row.workers for row in some]),
        )
        size = np.array([row.num_bytes for row in some])
        cost = nccl.all_reduce_s if is_all_reduce else nccl.reduce_scatter_s
        found[places] = cost(size, where, constants=constants)
    return found


def errors_of(rows: Sequence[Row], predicted_s: Array) -> Array:
    ratios: Array = predicted_s / np.array([row.measured_s for row in rows])
    return ratios - 1
