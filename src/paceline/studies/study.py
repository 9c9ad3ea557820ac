"""How a training step scales along five axes, and what limits it where."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cluster import Cluster, load_cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse.setting import find_kernel_models
from paceline.rehearse.summarise import link_uncertainty
from paceline.steps import Step
from paceline.strategies import Strategy, comparable_strategy_names, name_and_options
from paceline.studies.axes import Axes, AxisName, make_axes
from paceline.studies.crossings import Curve, crossings_of, told_once
from paceline.studies.doubt import doubt_of_step, efficiency_range
from paceline.studies.placement import num_nodes_of
from paceline.studies.points import SCALINGS, Array, Points, Scaling, make_points
from paceline.studies.roofline import RooflineKernel, roofline_kernels
from paceline.studies.table import StudyTable
from paceline.studies.timing import RESOURCES, Timing

DEFAULT_MAPS: tuple[tuple[AxisName, AxisName], ...] = (("workers", "link"), ("workers", "batch"))
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study found."""

    model: str
    cluster: Cluster
    base: Mapping[str, float]
    """The point that the axes go through."""
    axes: Axes
    table: StudyTable
    crossings: tuple[str, ...]
    """Where the limits change, in words."""
    strategies: tuple[str, ...]
    scalings: tuple[Scaling, ...]
    warnings: tuple[str, ...]
    kernels: tuple[RooflineKernel, ...] = ()
    """What the step computes at the base's batch size, for a roofline chart."""

    def base_row(self, strategy: str | None = None) -> dict[str, Any]:
        """The point that all axes go through, for one strategy; by default the first."""
        own = self.table.where(sweep="base", strategy=strategy or self.strategies[0])
        return next(own.rows())

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame, one row per point; needs pandas."""
        return self.table.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "model": self.model,
            "cluster": self.cluster.name,
            "base": dict(self.base),
            "strategies": list(self.strategies),
            "crossings": list(self.crossings),
            "warnings": list(self.warnings),
            "points": self.table.to_list(),
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=1)


def study(
    step: Step,
    *,
    cluster: str | Path | Cluster,
    strategies: Sequence[str | Strategy] | None = None,
    workers: str | Sequence[int] | None = None,
    link: str | Sequence[float] | None = None,
    batch: str | Sequence[int] | None = None,
    arithmetic: str | Sequence[float] | None = None,
    memory_bandwidth: str | Sequence[float] | None = None,
    maps: Sequence[tuple[AxisName, AxisName]] = DEFAULT_MAPS,
    scalings: Sequence[Scaling] = SCALINGS,
    kernel_model: KernelModel | Path | None = None,
    jitter: float | None = None,
    progress: Progress | None = None,
) -> Study:
    """How a step scales with its batch size, its device, its links and the number of workers.

    Each axis is varied alone, from the cluster and the step as they are given, and in pairs as
    maps. Every point has its step time with a range, throughput, efficiency, cost, what limits it,
    and what a tenth more of each resource would bring.

    Args:
        step: What is trained; captured once per batch size.
        cluster: A cluster of equal nodes: a preset's name, a TOML file, or a ``Cluster``.
        strategies: Names, or objects such as ``Daso(period=8)``; all names by default.
        workers: Numbers of workers, or a range such as ``"1:4096"``.
        link: Bandwidths between nodes in bytes per second, or a range such as ``"1gbit:800gbit"``.
        batch: Batch sizes per worker, or a range such as ``"8:512"``.
        arithmetic: Factors on the device's arithmetic speed, or a range such as ``"0.5:4"``.
        memory_bandwidth: Factors on the device's memory bandwidth, likewise.
        maps: Pairs of axes that are varied together.
        scalings: ``"weak"`` keeps the batch per worker, ``"strong"`` the global batch.
        kernel_model: A kernel model, or a file that ``paceline fit`` wrote.
        jitter: How much a worker's time varies; by default the cluster's own figure.
        progress: Called with what is done, how much of it, and the total.

    Returns:
        The table of all points, and where the limits change, in words.
    """
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    axes = make_axes(
        chosen,
        step.batch,
        batches=batch,
        arithmetic=arithmetic,
        memory_bandwidth=memory_bandwidth,
        link=link,
        workers=workers,
    )
    kind = chosen.node_kinds[0]
    base: dict[str, float] = {
        "batch": step.batch,
        "arithmetic": 1.0,
        "memory_bandwidth": 1.0,
        "link": kind.between.bandwidth_bytes_per_s,
        "workers": chosen.num_workers,
    }
    given = comparable_strategy_names() if strategies is None else strategies
    names = tuple(map(_title, given))
    if len(set(names)) < len(names):
        raise ValueError(f"strategies={', '.join(names)} names one of them twice; leave one out")
    points = make_points(axes, base, strategies=names, maps=maps, scalings=scalings)
    timing = Timing(
        step=step,
        cluster=chosen,
        kernel_model=find_kernel_models(chosen, None, kernel_model)[kind.device.name],
        jitter=jitter,
        strategies={_title(one): one for one in given if isinstance(one, Strategy)},
    )
    table = _table(points, timing, progress or _silent)
    return Study(
        model=step.title,
        cluster=chosen,
        base=base,
        axes=axes,
        table=table,
        crossings=tuple(_crossings(names, table, points, timing)),
        strategies=names,
        scalings=tuple(scalings),
        warnings=timing.compute_of(step.batch).warnings,
        kernels=tuple(roofline_kernels(timing.capture_of(step.batch), timing.kernel_model)),
    )


def _title(strategy: str | Strategy) -> str:
    """What tables and charts call a strategy: its name, with the options that were given."""
    if isinstance(strategy, str):
        return strategy
    try:
        name, options = name_and_options(strategy)
    except ValueError:  # a class that is not registered
        return type(strategy).__name__
    given = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name}({given})" if given else name


def _silent(what: str, done: int, total: int) -> None:
    pass


def _table(points: Points, timing: Timing, progress: Progress) -> StudyTable:
    total = len(points) * (2 + len(RESOURCES))
    batches = np.unique(points.batch)
    for number, batch in enumerate(batches):  # what takes long is captured here
        progress(f"capture of batch {batch}", number * len(points) // len(batches), total)
        timing.capture_of(int(batch))
    alone = timing.alone(points)
    progress("all workers", len(points), total)
    timed = timing.timed(points)
    gains: dict[str, Array] = {}
    for number, resource in enumerate(RESOURCES, start=2):
        progress(f"more of {resource}", number * len(points), total)
        gains[resource] = 1 - timing.timed(points, resource, like=timed).steps_s / timed.steps_s
    progress("done", total, total)
    return StudyTable(columns=_columns(points, timing, alone, timed.steps_s, gains))


def _columns(
    points: Points,
    timing: Timing,
    alone: tuple[Array, Array],
    steps_s: Array,
    gains: Mapping[str, Array],
) -> dict[str, Array]:
    alone_s, device_s = alone
    per_s = points.workers * points.batch / steps_s
    exposed_s = np.maximum(steps_s - alone_s, 0.0)
    doubts: dict[str, Any] = {
        "kernels": _by_batch(points, lambda batch: timing.compute_of(batch).uncertainty),
        "links": link_uncertainty(timing.cluster),
    }
    uncertainty = doubt_of_step(exposed_s / steps_s, **doubts)
    least, most = efficiency_range(alone_s / steps_s, exposed_s / steps_s, **doubts)
    slowest, quickest = 1 + uncertainty, np.maximum(1 - uncertainty, 0.0)
    nodes = num_nodes_of(points.workers, timing.workers_per_node)
    price = timing.cluster.node_kinds[0].price_per_hour
    hourly = nodes * (np.nan if price is None else price)
    dollars = hourly / 3600 / per_s * 1e6
    memory_bytes = _by_batch(points, lambda batch: timing.compute_of(batch).memory_bytes)
    return {
        "sweep": points.sweep,
        "scaling": points.scaling,
        "strategy": points.strategy,
        "batch": points.batch,
        "arithmetic": points.arithmetic,
        "memory_bandwidth": points.memory_bandwidth,
        "link_bytes_per_s": points.link,
        "workers": points.workers,
        "nodes": nodes,
        "step_s": steps_s,
        "low_s": steps_s * quickest,
        "high_s": steps_s * slowest,
        "compute_s": device_s,
        "exposed_communication_s": exposed_s,
        "host_s": np.maximum(steps_s - exposed_s - device_s, 0.0),
        "throughput_per_s": per_s,
        "throughput_low_per_s": per_s / slowest,
        "throughput_high_per_s": per_s / np.maximum(quickest, 1e-9),
        "efficiency": alone_s / steps_s,
        "efficiency_low": least,
        "efficiency_high": most,
        "dollars_per_million_samples": dollars,
        "dollars_low_per_million_samples": dollars * quickest,
        "dollars_high_per_million_samples": dollars * slowest,
        "fits": memory_bytes <= timing.kernel_model.device.memory_bytes,
        "bottleneck": np.array(RESOURCES)[np.argmax([gains[name] for name in RESOURCES], axis=0)],
        **{f"gain_{name.replace(' ', '_')}": gain for name, gain in gains.items()},
    }


def _by_batch(points: Points, value: Callable[[int], float]) -> Array:
    batches, places = np.unique(points.batch, return_inverse=True)
    return np.asarray([value(int(batch)) for batch in batches])[places]


def _crossings(
    names: Sequence[str], table: StudyTable, points: Points, timing: Timing
) -> list[str]:
    found = []
    for name in names:
        along = (points.sweep == "workers") & (points.scaling == "weak") & (points.strategy == name)
        places = np.flatnonzero(along)
        if not len(places):
            continue
        own = Curve(
            workers=points.workers[places],
            bottleneck=table["bottleneck"][places],
            efficiency=table["efficiency"][places],
        )

        def twice(places: Array = places) -> Curve:
            some = points.take(places)
            faster = _table(replace(some, link=2 * some.link), timing, _silent)
            return Curve(
                workers=some.workers,
                bottleneck=faster["bottleneck"],
                efficiency=faster["efficiency"],
            )

        found += crossings_of(name, own, twice)
    return told_once(names, found)
