"""Predicted against published NCCL tables, each system also with nothing of its own known.

python benchmarks/nccl_tables.py

Three comparisons, at 8 B to 16 GiB:

- *built in*: the preset as it is, whose link was described from its own table, but for those in
  UNSEEN;
- *left out*: the constants of the protocols fitted to the other systems, and the link described by
  its data sheet and by what the other systems reach of theirs; between nodes, the latency by the
  network's own smallest message;
- *without tables*: the typical figures of a cluster file that names nothing but latency and
  bandwidth.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq, least_squares

from paceline.cluster import Link, load_cluster
from paceline.collectives import Topology, nccl
from paceline.collectives.topology import topology_of, with_inside

DATA = Path(__file__).parent / "data"
RESULT = Path(__file__).parent.parent / "docs" / "results" / "nccl_tables.json"
BARS = {"inside": 0.08, "between": 0.15}
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
# What a link of another kind cannot say about these: the bus of the L40S goes through the host,
# and a DGX-1 has no switch.
SWITCHED = ("a100_sxm", "h100_sxm", "b200_sxm")


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


# -- leaving a system out ---------------------------------------------------------------------

# The constants of the protocols, and of each system what its link reaches, takes and starts with.
SHARED = ("ll", "ll128", "ll128_start", "simple_start", "simple_hop", "fill", "switch_start")
OWN = ("latency", "start", "efficiency", "switch")


def constants_of(values: Array) -> nccl.Constants:
    ll, ll128, ll128_start_s, simple_start_s, simple_hop_s, fill_s, switch_start_s = values
    base = nccl.MEASURED
    return replace(
        base,
        ll=replace(base.ll, share=ll),
        ll128=replace(base.ll128, share=ll128, start_s=ll128_start_s),
        simple=replace(base.simple, start_s=simple_start_s, hop_s=simple_hop_s),
        fill_s=fill_s,
        switch_start_s=switch_start_s,
    )


def with_own(system: str, values: Array) -> Topology:
    """A switched system with its data sheet's bandwidth, and with these figures."""
    latency_s, start_s, efficiency, switch = values
    link = load_cluster(IN_NODE[system]).node_kinds[0].inside
    adds_up = link.switch_bandwidth_bytes_per_s is not None
    own = Link(
        latency_s=latency_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        start_s=start_s,
        efficiency=min(efficiency, 1.0),
        switch_bandwidth_bytes_per_s=switch * link.bandwidth_bytes_per_s if adds_up else None,
    )
    return with_inside(topology_of(load_cluster(IN_NODE[system])), own)


def fit_without(left_out: str) -> tuple[nccl.Constants, Topology]:
    """Constants fitted to the other switched systems, and the left-out one as they suggest."""
    others = [system for system in SWITCHED if system != left_out]
    rows = [row for row in in_node_rows() if row.system in others]
    measured_s = np.array([row.measured_s for row in rows])
    weights = np.where([row.num_bytes >= LARGE_BYTES for row in rows], 1.5, 0.7)
    base = nccl.MEASURED
    start = [
        *(base.ll.share, base.ll128.share, base.ll128.start_s, base.simple.start_s),
        *(base.simple.hop_s, base.fill_s, base.switch_start_s),
        *([1e-6, 7e-6, 0.8, 0.6] * len(others)),
    ]

    def unpack(logs: Array) -> tuple[nccl.Constants, Array]:
        values = np.exp(logs)
        own = values[len(SHARED) :].reshape(len(others), len(OWN))
        return constants_of(values[: len(SHARED)]), own

    def residuals(logs: Array) -> Array:
        constants, own = unpack(logs)
        topologies = {name: with_own(name, each) for name, each in zip(others, own, strict=True)}
        ratio = predict_s(rows, topologies, constants) / measured_s
        pull = 0.3 * (logs - np.log(start))  # where the systems that are left do not tell
        return np.concatenate([weights * np.clip(np.log(ratio), -0.6, 0.6), pull])

    solution = least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.1).x
    constants, own = unpack(solution)
    return constants, with_own(left_out, np.exp(np.log(own).mean(axis=0)))


def typical(name: str) -> Topology:
    """A cluster as somebody writes it down who knows its data sheet and no table."""
    cluster = load_cluster(name)
    (node,) = cluster.node_kinds
    inside = Link(
        latency_s=1e-6,
        bandwidth_bytes_per_s=node.inside.bandwidth_bytes_per_s,
        shared=node.inside.shared,
    )
    between = Link(
        latency_s=node.between.latency_s,
        bandwidth_bytes_per_s=node.between.bandwidth_bytes_per_s,
        shared=True,
    )
    return topology_of(cluster.replace(node_kinds=(node.replace(inside=inside, between=between),)))


# What holds of every network, and of each its latency and efficiency.
OF_NETWORKS = ("ll_most", "window", "simple_hop", "fill", "fill_hops")


def network_constants(values: Array) -> nccl.Constants:
    ll_most, window, simple_hop_s, fill_s, fill_hops = values
    base = nccl.MEASURED
    return replace(
        base,
        ll=replace(base.ll, most_between_bytes_per_s=ll_most),
        simple=replace(base.simple, between_hop_s=simple_hop_s),
        window_bytes=window,
        fill_between_s=fill_s,
        fill_between_hops=fill_hops,
    )


def with_network(system: str, latency_s: float, efficiency: float) -> Topology:
    where = between_topology(system)
    between = replace(where.between, latency_s=latency_s)
    return replace(where, between=between, between_efficiency=min(efficiency, 1.0))


def fit_networks(left_out: str | None) -> tuple[nccl.Constants, Topology | None]:
    """Constants fitted to the other networks, and the left-out one with what they reach.

    Every table counts the same: a network, and a number of its nodes.
    """
    others = [system for system in FITTED if system != left_out]
    rows = [row for row in between_rows() if row.system in others and row.nodes > 1]
    measured_s = np.array([row.measured_s for row in rows])
    sizes = Counter((row.system, row.nodes) for row in rows)
    weights = np.array([sizes[row.system, row.nodes] ** -0.5 for row in rows])
    base = nccl.MEASURED
    start = [base.ll.most_between_bytes_per_s, base.window_bytes, base.simple.between_hop_s]
    start += [base.fill_between_s, base.fill_between_hops]
    for system in others:
        known = between_topology(system)
        start += [float(known.between.latency_s), float(known.between_efficiency)]

    def unpack(logs: Array) -> tuple[nccl.Constants, Array]:
        values = np.exp(logs)
        own = values[len(OF_NETWORKS) :].reshape(len(others), 2)
        return network_constants(values[: len(OF_NETWORKS)]), own

    def residuals(logs: Array) -> Array:
        constants, own = unpack(logs)
        topologies = {
            name: with_network(name, *each) for name, each in zip(others, own, strict=True)
        }
        ratio = predict_s(rows, topologies, constants) / measured_s
        pull = 0.02 * (logs - np.log(start))
        return np.concatenate([weights * np.clip(np.log(ratio), -1.2, 1.2), pull])

    solution = least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.05).x
    constants, own = unpack(solution)
    if left_out is None:
        return constants, None
    efficiency = float(np.exp(np.log(own[:, 1]).mean()))
    return constants, with_network(left_out, smallest_latency_s(left_out), efficiency)


def smallest_latency_s(system: str) -> float:
    """A network's latency by its own smallest all-reduce: what one short run tells."""
    rows = [row for row in between_rows() if row.system == system and row.kind == "all_reduce"]
    row = min(rows, key=lambda each: (each.nodes, each.num_bytes))
    where = between_topology(system)

    def missing_s(log: float) -> float:
        told = with_network(system, float(np.exp(log)), float(where.between_efficiency))
        return float(predict_s([row], {system: told}, nccl.MEASURED)[0]) - row.measured_s

    if missing_s(np.log(1e-7)) > 0 or row.num_bytes > SMALL_BYTES:
        return float(where.between.latency_s)  # its small messages are not known
    return float(np.exp(brentq(missing_s, np.log(1e-7), np.log(1e-2))))


# -- what is shown ----------------------------------------------------------------------------


def compare() -> list[dict[str, Any]]:
    found = []
    for rows_of_all, presets in ((in_node_rows(), IN_NODE), (between_rows(), BETWEEN)):
        for system, preset in presets.items():
            rows = [row for row in rows_of_all if row.system == system]
            is_between = presets is BETWEEN
            built_in = between_topology(system) if is_between else topology_of(load_cluster(preset))
            ways: dict[str, tuple[nccl.Constants, Topology]] = {
                "built in": (nccl.MEASURED, built_in),
            }
            if not system.startswith("rtx"):
                ways["without tables"] = (nccl.MEASURED, typical(preset))
            if system in SWITCHED:
                ways["left out"] = fit_without(system)
            elif is_between and system in FITTED:
                constants, topology = fit_networks(system)
                assert topology is not None
                ways["left out"] = (constants, topology)
            for way, (constants, topology) in ways.items():
                errors = errors_of(rows, predict_s(rows, {system: topology}, constants))
                found += [
                    {"way": way, "error": float(error)} | vars(row)
                    for row, error in zip(rows, errors, strict=True)
                ]
    return found


def mean(found: Sequence[Mapping[str, Any]]) -> float | None:
    return round(statistics.mean(abs(row["error"]) for row in found), 4) if found else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def summarise(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        gpus = row["workers"] if row["nodes"] == 1 else f"{row['nodes']}x{row['workers']}"
        groups[row["way"], row["system"], row["kind"], gpus].append(row)
    return [
        {
            "way": way,
            "system": system,
            "kind": kind,
            "gpus": gpus,
            "mean_error_small": mean([row for row in rows if row["num_bytes"] < LARGE_BYTES]),
            "mean_error_large": mean([row for row in rows if row["num_bytes"] >= LARGE_BYTES]),
        }
        for (way, system, kind, gpus), rows in groups.items()
    ]


def totals(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By way: the mean of all rows inside nodes and between them, and of each system."""
    out: dict[str, dict[str, float | None]] = {}
    for way in ("built in", "left out", "without tables"):
        rows = [row for row in found if row["way"] == way]
        large = [row for row in rows if row["num_bytes"] >= LARGE_BYTES]
        out[way] = {
            "inside, 1 MiB and more": mean([row for row in large if row["nodes"] == 1]),
            "inside, below": mean(
                [r for r in rows if r["nodes"] == 1 and r["num_bytes"] < LARGE_BYTES]
            ),
            "between": mean([r for r in rows if r["nodes"] > 1 and r["system"] not in UNSEEN]),
            "between, never used": mean(
                [r for r in rows if r["nodes"] > 1 and r["system"] in UNSEEN]
            ),
        }
        for system in sorted({row["system"] for row in rows}):
            own = [row for row in rows if row["system"] == system]
            is_inside = system in IN_NODE
            out[way][system] = mean(
                [row for row in own if row["num_bytes"] >= LARGE_BYTES] if is_inside else own
            )
    return out


def main() -> int:
    found = compare()
    table = Table("way", "system", "collective", "GPUs", "below 1 MiB", "1 MiB and more")
    summary = summarise(found)
    for row in summary:
        if row["way"] == "built in":
            table.add_row(
                *(str(row[name]) for name in ("way", "system", "kind", "gpus")),
                percent(row["mean_error_small"]),
                percent(row["mean_error_large"]),
            )
    console = Console()
    console.print(table)
    by_way = totals(found)
    for way, means in by_way.items():
        console.print(way, {name: percent(value) for name, value in means.items()})
    RESULT.write_text(
        json.dumps({"bars": BARS, "means": by_way, "groups": summary}, indent=1) + "\n", "utf-8"
    )
    own = by_way["built in"]
    inside, between = own["inside, 1 MiB and more"] or 0.0, own["between"] or 0.0
    return 0 if inside <= BARS["inside"] and between <= BARS["between"] else 1


if __name__ == "__main__":
    sys.exit(main())
