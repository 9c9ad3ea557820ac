"""``paceline predict`` on unequal nodes: equal shares, balanced ones, and fewer nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.cli import frame

if TYPE_CHECKING:
    from paceline.cluster import Cluster
    from paceline.rehearse import Prediction
    from paceline.steps import Step


def has_unequal_nodes(cluster: str | Cluster | None) -> bool:
    """Whether a cluster has nodes that compute or communicate differently."""
    if cluster is None:
        return False
    from paceline.cluster import load_cluster
    from paceline.rehearse.mixed import is_mixed

    return is_mixed(load_cluster(cluster) if isinstance(cluster, str) else cluster)


def show_mixed(
    step: Step,
    cluster: str | Cluster,
    strategy: str,
    settings: dict[str, Any],
    *,
    show: Callable[[Prediction], None],
    json: bool,
) -> None:
    """Predict and show; JSON is the prediction for equal shares, with the others beside it."""
    from paceline.rehearse import predict_mixed

    found = predict_mixed(step, cluster=cluster, strategy=strategy, **settings)
    if json:
        others = {key: value for key, value in found.to_dict().items() if key != "equal"}
        frame.print_json(found.equal.to_dict() | others)
    else:
        show(found.equal)
        _show_ways(found.equal, found.balanced, dict(found.without))
    for note in (*found.equal.warnings, *found.notes()):
        frame.note(f"Note: {note}")


def _show_ways(equal: Prediction, balanced: Prediction, without: dict[str, Prediction]) -> None:
    from rich.table import Table

    from paceline.cluster.units import format_duration

    ways = {"equal shares": equal, "balanced shares": balanced}
    ways |= {f"without '{name}'": each for name, each in without.items()}
    table = Table("the same global batch", "step", "samples/s", "batch per worker")
    for title, each in ways.items():
        batches = ", ".join(f"{name}: {batch}" for name, batch in each.batches.items())
        table.add_row(
            title,
            format_duration(each.step_s),
            f"{each.throughput_per_s:,.0f}",
            batches or str(each.batch),
        )
    frame.console().print(table)
