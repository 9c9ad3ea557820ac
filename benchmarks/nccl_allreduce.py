"""Predicted against published NCCL all-reduce times: two constants a machine, none a size.

python benchmarks/nccl_allreduce.py
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from paceline.collectives import Route, Topology, collective_s
from paceline.collectives.formulas import ring_all_reduce_s
from paceline.measure.link_fit import fit_constants, mean_error

DATA = Path(__file__).parent / "data" / "nccl_allreduce.csv"
RESULT = Path(__file__).parent.parent / "docs" / "results" / "nccl_allreduce.json"
BAR = 0.08

# NVLinks between the GPUs of a DGX-1 with V100, a hybrid cube mesh. Source: the topology that NCCL
# printed on one, https://github.com/NVIDIA/nccl/issues/671; the second four mirror the first.
_QUAD = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 1}
DGX1_NVLINKS = (
    _QUAD
    | {(a + 4, b + 4): count for (a, b), count in _QUAD.items()}
    | {(gpu, gpu + 4): 2 for gpu in range(4)}
)
# The hop that NCCL's tuning model has for NVLink; 12 NVLink 3 of 25 GB/s on an A100.
HOP_S = 3.4e-6
A100_LINK_BYTES_PER_S = 300e9

Array = npt.NDArray[np.float64]
Row = tuple[str, int, float, float]  # GPU, ranks, bytes, seconds


@cache
def num_rings(num_gpus: int) -> int:
    """How many rings through the first GPUs of a DGX-1 run side by side, a link for each hop.

    Each NVLink has a direction there and one back. So one link closes a ring of two GPUs, and a
    closed path through more of them is two rings.
    """
    links = {pair: count for pair, count in DGX1_NVLINKS.items() if max(pair) < num_gpus}
    return links[0, 1] if num_gpus == 2 else 2 * _num_disjoint_cycles(links, num_gpus)


def _num_disjoint_cycles(links: dict[tuple[int, int], int], num_gpus: int) -> int:
    most = 0
    for hops in _cycles(links, num_gpus, (0,)):
        left = {pair: count - (pair in hops) for pair, count in links.items()}
        most = max(most, 1 + _num_disjoint_cycles(left, num_gpus))
        if most == 3:  # a V100 has six links, and each cycle takes two
            break
    return most


def _cycles(
    links: dict[tuple[int, int], int], num_gpus: int, path: tuple[int, ...]
) -> Iterator[set[tuple[int, int]]]:
    def is_linked(a: int, b: int) -> bool:
        return links.get((min(a, b), max(a, b)), 0) > 0

    if len(path) == num_gpus:
        if is_linked(path[-1], 0):
            hops = zip(path, (*path[1:], 0), strict=True)
            yield {(min(hop), max(hop)) for hop in hops}
        return
    for gpu in range(num_gpus):
        if gpu not in path and is_linked(path[-1], gpu):
            yield from _cycles(links, num_gpus, (*path, gpu))


def predict_a100(rows: Sequence[Row], copy_bytes_per_s: float, call_s: float) -> Array:
    """All GPUs behind one NVSwitch; what limits is how fast a GPU passes data on."""
    return _predict(
        rows,
        bandwidth=np.full(len(rows), A100_LINK_BYTES_PER_S),
        copy_bandwidth=copy_bytes_per_s,
        call_s=call_s,
    )


def predict_v100(rows: Sequence[Row], nvlink_bytes_per_s: float, call_s: float) -> Array:
    """What limits is the number of rings that the NVLinks close."""
    rings = {ranks: num_rings(ranks) for ranks in {row[1] for row in rows}}
    bandwidth = np.array([rings[row[1]] for row in rows]) * nvlink_bytes_per_s
    return _predict(rows, bandwidth=bandwidth, copy_bandwidth=np.inf, call_s=call_s)


def _predict(
    rows: Sequence[Row], *, bandwidth: Array, copy_bandwidth: float, call_s: float
) -> Array:
    route = Route(latency_s=HOP_S, bandwidth_bytes_per_s=bandwidth)
    topology = Topology(
        num_nodes=1,
        workers_per_node=np.array([row[1] for row in rows]),
        inside=route,
        between=route,
        copy_bandwidth_bytes_per_s=copy_bandwidth,
    )
    num_bytes = np.array([row[2] for row in rows])
    return np.asarray(collective_s("all_reduce", num_bytes, topology, call_s=call_s))


def predict_plain_ring(rows: Sequence[Row], bandwidth_bytes_per_s: float, hop_s: float) -> Array:
    """For comparison: 2(P−1)(α + n/P/B), with the number of rings where it is known."""
    rings = np.array([num_rings(row[1]) if row[0] == "v100" else 1 for row in rows])
    route = Route(latency_s=hop_s, bandwidth_bytes_per_s=rings * bandwidth_bytes_per_s)
    num_bytes, ranks = np.array([row[2] for row in rows]), np.array([row[1] for row in rows])
    return np.asarray(ring_all_reduce_s(num_bytes, ranks, route))


# name -> the model, where its two constants start, and what they are
MACHINES: dict[str, tuple[Callable[..., Array], tuple[float, float], tuple[str, str]]] = {
    "a100": (predict_a100, (235e9, 1e-5), ("copy_bytes_per_s", "call_s")),
    "v100": (predict_v100, (20e9, 1e-5), ("nvlink_bytes_per_s", "call_s")),
}


def read_rows() -> list[Row]:
    with DATA.open(encoding="utf-8") as file:
        return [
            (row["gpu"], int(row["ranks"]), float(row["bytes"]), float(row["time_us"]) * 1e-6)
            for row in csv.DictReader(file)
        ]


def fit(predict: Callable[..., Array], start: Sequence[float], rows: Sequence[Row]) -> Array:
    return fit_constants(
        lambda constants: predict(rows, *constants), start, np.array([row[3] for row in rows])
    )


def main() -> int:
    table = Table("GPU", "ranks", "sizes", "mean error", "worst", "at", title="NCCL all-reduce")
    result: dict[str, Any] = {"bar": BAR, "machines": {}}
    all_errors = []
    for gpu, rows_of_gpu in groupby(read_rows(), key=lambda row: row[0]):
        rows = list(rows_of_gpu)
        predict, start, names = MACHINES[gpu]
        constants = fit(predict, start, rows)
        measured_s = np.array([row[3] for row in rows])
        errors = predict(rows, *constants) / measured_s - 1
        all_errors += list(errors)
        plain = fit(predict_plain_ring, (start[0], HOP_S), rows)
        by_ranks = {}
        for ranks in sorted({row[1] for row in rows}):
            own = {
                row[2]: error for row, error in zip(rows, errors, strict=True) if row[1] == ranks
            }
            worst = max(own, key=lambda size, own=own: abs(own[size]))  # type: ignore[misc]
            mean = float(np.mean(np.abs(list(own.values()))))
            by_ranks[ranks] = {
                "mean_error": mean,
                "worst_error": float(own[worst]),
                "worst_bytes": worst,
                "errors": {str(int(size)): round(float(error), 4) for size, error in own.items()},
            }
            table.add_row(
                gpu,
                str(ranks),
                str(len(own)),
                f"{mean:.1%}",
                f"{own[worst]:+.1%}",
                f"{worst / 2**20:.0f} MiB",
            )
        result["machines"][gpu] = {
            "constants": dict(zip(names, (float(value) for value in constants), strict=True)),
            "mean_error": float(np.mean(np.abs(errors))),
            "mean_error_of_plain_ring": mean_error(predict_plain_ring(rows, *plain), measured_s),
            "ranks": by_ranks,
        }
    console = Console()
    console.print(table)
    for gpu, machine in result["machines"].items():
        fitted = ", ".join(f"{name} {value:.4g}" for name, value in machine["constants"].items())
        console.print(
            f"{gpu}: mean {machine['mean_error']:.1%} with {fitted}"
            f" (the plain ring formula: {machine['mean_error_of_plain_ring']:.1%})"
        )
    result["mean_error"] = float(np.mean(np.abs(all_errors)))
    result["worst_error"] = float(max(all_errors, key=abs))
    result["within_bar"] = all(one["mean_error"] <= BAR for one in result["machines"].values())
    console.print(f"all: mean {result['mean_error']:.1%}, worst {result['worst_error']:+.1%}")
    RESULT.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    return 0 if result["within_bar"] else 1


if __name__ == "__main__":
    sys.exit(main())
