"""The bandwidth of every link of a lab: requested and measured."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.cluster import Cluster, Node
from paceline.lab.lab import Lab
from paceline.lab.layout import link_rate_bytes_per_s, link_rates_bytes_per_s

TOLERANCE = 0.07
_SECONDS_PER_CHUNK = 0.1


@dataclass(frozen=True, kw_only=True)
class LinkCheck:
    """One link, from a node to the next: the requested and the measured rate."""

    source: int
    target: int
    asked_bytes_per_s: float
    measured_bytes_per_s: float

    @property
    def deviation(self) -> float:
        """The difference of the measured from the requested rate, relative to the latter."""
        return self.measured_bytes_per_s / self.asked_bytes_per_s - 1.0

    @property
    def is_within_tolerance(self) -> bool:
        """Whether the lab emulates this link well enough."""
        return abs(self.deviation) <= TOLERANCE


def check_links(cluster: Cluster, *, emulation: str = "auto") -> list[LinkCheck]:
    """Emulate the cluster with one worker per node and measure each node's link to the next.

    Args:
        cluster: The cluster to emulate, with at least two nodes.
        emulation: As for :class:`~paceline.lab.lab.Lab`.
    """
    rates = link_rates_bytes_per_s(cluster)
    if len(rates) < 2:
        raise ValueError("a lab of one node has no link to check; give at least 2 nodes")
    # A pair is as fast as its slower link.
    asked = [min(rates[i], rates[(i + 1) % len(rates)]) for i in range(len(rates))]
    nodes = tuple(_with_one_worker(node) for node in cluster.node_kinds)
    with (
        Lab(cluster.replace(node_kinds=nodes), emulation=emulation) as lab,
        TemporaryDirectory() as tmp,
    ):
        out = Path(tmp, "rates.json")
        sizes = [str(round(rate * _SECONDS_PER_CHUNK)) for rate in asked]
        module = [sys.executable, "-m", "paceline.lab.probe", f"--out={out}"]
        code = lab.run([*module, "--chunk-bytes", *sizes])
        if code != 0:
            raise RuntimeError(f"the measurement failed with exit code {code}")
        measured = json.loads(out.read_text())
    return [
        LinkCheck(
            source=i,
            target=(i + 1) % len(rates),
            asked_bytes_per_s=asked[i],
            measured_bytes_per_s=measured[i],
        )
        for i in range(len(rates))
    ]


def _with_one_worker(node: Node) -> Node:
    """The node with one worker that has the whole link."""
    rate = link_rate_bytes_per_s(node)
    link = node.between.replace(bandwidth_bytes_per_s=rate, shared=True)
    return node.replace(workers_per_node=1, between=link)
