"""What a lab emulates: a cluster, with the changes that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.cluster import Cluster, Node, load_cluster
from paceline.cluster.units import format_bandwidth, parse_bandwidth

DEFAULT_CLUSTER = "lab-2x2"
_MOST_RATE_BYTES_PER_S = 1.25e9
_MOST_WORKERS = 1024

# Which worker is slower, and how many times: (node, worker) -> factor
Slow = Mapping[tuple[int, int], float]


def lay_out(
    *,
    cluster: str | None = None,
    nodes: int | None = None,
    workers_per_node: str | None = None,
    link: str | None = None,
) -> Cluster:
    """A cluster to emulate: a preset or a file, with some numbers changed.

    Args:
        cluster: A built-in cluster or the path of a TOML file; by default ``"lab-2x2"``.
        nodes: The number of nodes.
        workers_per_node: One number for all nodes, or one for each, as in ``"2,1"``.
        link: The rate of each node's link to the others, as in ``"100 Mbit/s"``.
    """
    layout = load_cluster(cluster or DEFAULT_CLUSTER)
    counts = _worker_counts(workers_per_node)
    if len(counts) > 1:
        if nodes is not None and nodes != len(counts):
            raise ValueError(
                f"--workers {workers_per_node} describes {len(counts)} nodes but --nodes says "
                f"{nodes}; give as many numbers as there are nodes, or leave --nodes out"
            )
        layout = _with_unequal_workers(layout, counts)
    else:
        if nodes is not None:
            layout = layout.with_nodes(nodes)
        if counts:
            layout = layout.with_workers_per_node(counts[0])
    if link is not None:
        layout = layout.with_link(parse_bandwidth(link))
    if layout.num_workers > _MOST_WORKERS:
        raise ValueError(
            f"a lab runs a process for each worker, and {layout.num_workers:,} are more than "
            f"{_MOST_WORKERS}; give fewer --nodes or --workers"
        )
    link_rates_bytes_per_s(layout)  # refuses what no lab can emulate
    return layout


def _worker_counts(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise ValueError(
            f"--workers {text} is not understood; give a number of at least 1, such as 2, or "
            "one for each node, such as 2,1"
        )
    return counts


def _with_unequal_workers(layout: Cluster, counts: Sequence[int]) -> Cluster:
    if not layout.is_uniform:
        raise ValueError(
            f"--workers with several numbers needs a cluster with one kind of node, and "
            f"{layout.name!r} has {len(layout.node_kinds)}"
        )
    nodes = tuple(
        layout.node_kinds[0].replace(name=f"node{i}", count=1, workers_per_node=count)
        for i, count in enumerate(counts)
    )
    return layout.replace(node_kinds=nodes)


def parse_slow(texts: Sequence[str], layout: Cluster) -> dict[tuple[int, int], float]:
    """Slow workers from the command line, checked against the cluster they are in.

    Args:
        texts: Each ``NODE:WORKER=FACTOR``, or several with commas between.
        layout: The cluster that is emulated.
    """
    slow: dict[tuple[int, int], float] = {}
    for text in ",".join(texts).split(",") if texts else []:
        try:
            name, factor_text = text.split("=")
            node_text, worker_text = name.split(":")
            node, worker, factor = int(node_text), int(worker_text), float(factor_text)
        except ValueError:
            raise ValueError(
                f"--slow {text} is not understood; write NODE:WORKER=FACTOR, such as 1:0=2.0"
            ) from None
        if not 1.0 <= factor <= 100.0:
            raise ValueError(f"--slow {text}: the factor must lie between 1 and 100")
        per_node = layout.workers_per_node
        if not (0 <= node < len(per_node) and 0 <= worker < per_node[node]):
            raise ValueError(
                f"--slow {text} names a worker that is not there; nodes and workers count from 0, "
                f"and the nodes have {', '.join(map(str, per_node))} workers"
            )
        slow[node, worker] = factor
    return slow


def link_rate_bytes_per_s(node: Node) -> float:
    """The rate of a node's link: the sum over its workers, if each has a link of its own."""
    return node.between.bandwidth_bytes_per_s * (
        1 if node.between.shared else node.workers_per_node
    )


def link_rates_bytes_per_s(layout: Cluster) -> tuple[float, ...]:
    """The rate of each physical node's link; ValueError if one is too fast to emulate."""
    rates = tuple(
        link_rate_bytes_per_s(node) for node in layout.node_kinds for _ in range(node.count)
    )
    check_rate(max(rates), f"{layout.name!r} asks for", "; set --link")
    return rates


def check_rate(rate_bytes_per_s: float, asks: str = "this is", remedy: str = "") -> None:
    """ValueError if a link is too fast to emulate.

    Args:
        rate_bytes_per_s: The rate of the link.
        asks: Who asks for the rate, for the sentence.
        remedy: What to do about it, for the sentence.
    """
    if rate_bytes_per_s > _MOST_RATE_BYTES_PER_S:
        raise ValueError(
            f"a lab emulates links up to {format_bandwidth(_MOST_RATE_BYTES_PER_S, bits=True)}, "
            f"and {asks} {format_bandwidth(rate_bytes_per_s, bits=True)}{remedy}"
        )
