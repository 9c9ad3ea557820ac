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

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nccl_left_out import SWITCHED, fit_networks, fit_without
from nccl_rows import (
    BETWEEN,
    FITTED,
    IN_NODE,
    LARGE_BYTES,
    UNSEEN,
    between_rows,
    between_topology,
    errors_of,
    in_node_rows,
    predict_s,
)
from paceline.cluster import Link, load_cluster
from paceline.collectives import Topology, nccl
from paceline.collectives.topology import topology_of

RESULT = Path(__file__).parent.parent / "docs" / "results" / "nccl_tables.json"
BARS = {"inside": 0.08, "between": 0.15}


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
                ways["left out"] = fit_networks(system)
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
