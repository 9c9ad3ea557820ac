"""The report of a race, from its results as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.cluster import Cluster
from paceline.cluster.units import format_bandwidth
from paceline.race.task import RaceSettings
from paceline.studies.page import Page
from paceline.studies.racer import Racer
from paceline.studies.reports.race import RaceFigures, race_page

_BOUNDS = ("floor",)
_SHARED_CORES = (
    "All workers of an emulated cluster share this machine's cores: compare the entries of this "
    "race, not races on different machines."
)


def report_page(
    results: Sequence[Mapping[str, Any]],
    settings: RaceSettings,
    *,
    cluster: Cluster,
    emulation: str | None,
) -> Page:
    """The report as a page.

    Args:
        results: What the race found, entry by entry.
        settings: What every entry trained.
        cluster: What they ran on.
        emulation: How links were emulated; None on real machines.
    """
    setting = (
        f"Every entry trained {settings.model} on {settings.data} from the same weights, for "
        f"{settings.epochs} epochs with {settings.batch} samples per worker and step, on "
        f"{cluster.num_workers} workers."
    )
    return race_page(
        RaceFigures(
            title=f"{settings.model} on {settings.data}, {place_text(cluster)}",
            racers=[_racer(result) for result in results],
            target=settings.target,
            setting=setting,
            warnings=[] if emulation is None else [_SHARED_CORES],
        )
    )


def place_text(cluster: Cluster) -> str:
    """Where a race took place: nodes x workers, and the links between nodes.

    Args:
        cluster: The cluster.
    """
    workers = cluster.workers_per_node
    nodes = (
        f"{len(workers)}x{workers[0]}"
        if len(set(workers)) == 1
        else "workers " + ",".join(map(str, workers))
    )
    if len(workers) == 1:
        return f"{nodes} workers"
    rates = {
        format_bandwidth(node.between.bandwidth_bytes_per_s, bits=True)
        for node in cluster.node_kinds
    }
    return f"{nodes}, {' and '.join(sorted(rates))}"


def _racer(result: Mapping[str, Any]) -> Racer:
    expected = result["prediction"]
    return Racer(
        name=result["name"],
        step_s=result["step_s"],
        times_s=result["accuracy_times_s"],
        accuracies=result["accuracies"],
        bytes_between_nodes=result["bytes_between_nodes"],
        is_bound=result["name"] in _BOUNDS,
        time_to_target_s=result["time_to_target_s"],
        waiting_share=result["waiting_share"],
        predicted_step_s=None if expected is None else expected["step_s"],
        predicted_range_s=None if expected is None else (expected["low_s"], expected["high_s"]),
    )
