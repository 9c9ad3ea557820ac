"""A cluster of unequal nodes, predicted in every way that matters for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.units import format_duration
from paceline.rehearse.predict import predict
from paceline.rehearse.prediction import RESOLUTION, Prediction
from paceline.rehearse.rules import plain_node
from paceline.steps import Step
from paceline.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class MixedPrediction:
    """The same global batch on a cluster of unequal nodes, shared out in different ways."""

    equal: Prediction
    """All workers have the same batch, and the fast ones wait."""
    balanced: Prediction
    """Batches in proportion to speed, as :meth:`paceline.Pace.loader` makes them."""
    without: Mapping[str, Prediction]
    """Balanced, without one kind of node, by its name."""

    @property
    def hindering(self) -> tuple[str, ...]:
        """The kinds of node without which the job would be faster, the worst one first."""
        bar = (1 + RESOLUTION) * self.balanced.throughput_per_s
        gains = {name: each.throughput_per_s for name, each in self.without.items()}
        return tuple(
            name for name in sorted(gains, key=gains.__getitem__, reverse=True) if gains[name] > bar
        )

    def notes(self) -> tuple[str, ...]:
        """What to say about the cluster in plain sentences."""
        found = []
        gain = self.balanced.throughput_per_s / self.equal.throughput_per_s
        if gain > 1 + RESOLUTION:
            found.append(
                f"With shares in proportion to speed the step takes "
                f"{format_duration(self.balanced.step_s)} instead of "
                f"{format_duration(self.equal.step_s)}: {gain:.2f} times the samples per second."
            )
        for name in self.hindering[:1]:
            times = self.without[name].throughput_per_s / self.balanced.throughput_per_s
            found.append(
                f"The nodes '{name}' hurt more than they help: without them the job trains "
                f"{times:.2f} times as many samples per second."
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "equal": self.equal.to_dict(),
            "balanced": self.balanced.to_dict(),
            "without": {name: each.to_dict() for name, each in self.without.items()},
            "hindering": list(self.hindering),
            "notes": list(self.notes()),
        }


def predict_mixed(
    step: Step,
    *,
    cluster: str | Path | Cluster,
    strategy: str | Strategy = "sync",
    **settings: Any,
) -> MixedPrediction:
    """Predict a step on a cluster of unequal nodes: equal shares, balanced ones, fewer nodes.

    Args:
        step: What is trained, with the batch that each worker has under equal shares.
        cluster: A preset's name, a TOML file or a :class:`~paceline.Cluster` with at least two
            different kinds of node.
        strategy: As for :func:`paceline.predict`.
        **settings: Further arguments of :func:`paceline.predict`.

    """
    own = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if not is_mixed(own):
        raise ValueError(f"All nodes of {own.name} are alike; paceline.predict tells all about it.")
    settings |= {"strategy": strategy}
    equal = predict(step, cluster=own, **settings)
    balanced = predict(step, cluster=own, shares="balanced", **settings)
    total = step.batch * own.num_workers
    without = {}
    for node in own.node_kinds:
        rest = tuple(other for other in own.node_kinds if other is not node)
        without[node.name] = predict(
            step,
            cluster=own.replace(node_kinds=rest),
            shares="balanced",
            global_batch=total,
            **settings,
        )
    return MixedPrediction(equal=equal, balanced=balanced, without=without)


def is_mixed(cluster: Cluster) -> bool:
    """Whether a cluster has nodes that compute or communicate differently."""
    return len({plain_node(node) for node in cluster.node_kinds}) > 1
