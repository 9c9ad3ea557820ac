"""A study made by hand: formulas in place of captures, so that reports are tested in no time."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cluster import Cluster, load_cluster
from paceline.studies.axes import make_axes
from paceline.studies.points import make_points
from paceline.studies.roofline import RooflineKernel
from paceline.studies.study import DEFAULT_MAPS, Study
from paceline.studies.table import StudyTable
from paceline.studies.timing import RESOURCES

BATCH = 32
_ROUNDS = {"sync": 1.0, "local-sgd": 0.25, "daso": 0.1}


def synthetic_study(
    model: str = "resnet50",
    *,
    strategies: tuple[str, ...] = tuple(_ROUNDS),
    cluster: Cluster | None = None,
    only: str | None = None,
) -> Study:
    """Of a step that takes 0.1 s for 32 samples and exchanges 2 GB; of one sweep with ``only``."""
    cluster = cluster or load_cluster("aws-p4d").with_nodes(4)
    kind = cluster.node_kinds[0]
    axes = make_axes(cluster, BATCH)
    base: dict[Any, float] = {
        "batch": BATCH,
        "arithmetic": 1.0,
        "memory_bandwidth": 1.0,
        "link": kind.between.bandwidth_bytes_per_s,
        "workers": cluster.num_workers,
    }
    points = make_points(
        axes,
        base,
        strategies=strategies,
        maps=DEFAULT_MAPS,
        scalings=("weak", "strong"),
    )
    nodes = np.maximum(1, points.workers // kind.workers_per_node)
    arithmetic_s = 0.07 * points.batch / BATCH / points.arithmetic
    memory_s = 0.03 * points.batch / BATCH / points.memory_bandwidth
    alone_s = arithmetic_s + memory_s
    rounds = np.array([_ROUNDS.get(name, 0.5) for name in points.strategy])
    latency_s = rounds * 2e-5 * nodes
    link_s = np.where(nodes > 1, rounds * 2e9 / points.link, 0.0)
    exposed_s = np.where(points.workers > 1, latency_s + link_s + 0.002, 0.0)
    step_s = alone_s + exposed_s
    shares = {
        "arithmetic": arithmetic_s,
        "memory bandwidth": memory_s,
        "link bandwidth": link_s,
        "link latency": latency_s,
        "host": 0 * step_s,
        "stragglers": np.where(points.workers > 1, 0.002, 0.0),
    }
    gains = {name: 0.1 / 1.1 * shares[name] / step_s for name in RESOURCES}
    per_s = points.workers * points.batch / step_s
    price = np.nan if kind.price_per_hour is None else kind.price_per_hour
    table = StudyTable(
        columns={
            "sweep": points.sweep,
            "scaling": points.scaling,
            "strategy": points.strategy,
            "batch": points.batch,
            "arithmetic": points.arithmetic,
            "memory_bandwidth": points.memory_bandwidth,
            "link_bytes_per_s": points.link,
            "workers": points.workers,
            "nodes": nodes,
            "step_s": step_s,
            "low_s": 0.93 * step_s,
            "high_s": 1.07 * step_s,
            "compute_s": alone_s,
            "exposed_communication_s": exposed_s,
            "host_s": 0 * step_s,
            "throughput_per_s": per_s,
            "throughput_low_per_s": per_s / 1.07,
            "throughput_high_per_s": per_s / 0.93,
            "efficiency": alone_s / step_s,
            "efficiency_low": 0.95 * alone_s / step_s,
            "efficiency_high": 1.05 * alone_s / step_s,
            "dollars_per_million_samples": nodes * price / 3600 / per_s * 1e6,
            "fits": points.batch <= 4 * BATCH,
            "bottleneck": np.array(RESOURCES)[
                np.argmax([gains[name] for name in RESOURCES], axis=0)
            ],
            **{f"gain_{name.replace(' ', '_')}": gain for name, gain in gains.items()},
        }
    )
    return Study(
        model=model,
        cluster=cluster,
        base=base,
        axes=axes,
        table=table if only is None else table.where(sweep=only),
        strategies=tuple(dict.fromkeys(points.strategy.tolist())),
        scalings=("weak", "strong"),
        crossings=("sync: beyond 96 workers the links limit; doubling moves that to 210.",),
        warnings=("2 % of the time is of kernels that nobody measured.",),
    )


def synthetic_roofline() -> list[RooflineKernel]:
    """A few kernels on an A100."""
    rows = (
        ("convolution", "convolution", 16, 8e9, 6e7, 9e-5, 1.56e14),
        ("convolution_backward_data", "convolution_backward_data", 16, 8e9, 7e7, 1.2e-4, 1.56e14),
        ("batch_norm", "batch_norm", 53, 2.5e7, 1e8, 8e-5, 1.95e13),
        ("relu_", "pointwise", 49, 2.5e7, 2e8, 1.6e-4, 1.95e13),
        ("addmm", "matmul", 1, 1.3e8, 9e6, 1.2e-5, 1.56e14),
    )
    return [
        RooflineKernel(
            title=f"{op} (32×64×56×56)",
            family=family,
            count=count,
            flop=flop,
            num_bytes=num_bytes,
            seconds=seconds,
            peak_flops=peak,
        )
        for op, family, count, flop, num_bytes, seconds, peak in rows
    ]
