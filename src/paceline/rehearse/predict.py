"""Predict a training step: on one device, or on a cluster under a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.device import Device
from paceline.cluster.devices import device_names, load_device
from paceline.kernels.library import load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.rehearse.cache import captured, rehearsed
from paceline.rehearse.compute import Compute, compute_cost, is_serial
from paceline.rehearse.prediction import Bottleneck, Prediction
from paceline.rehearse.rehearsal import Timed, distinct_nodes
from paceline.rehearse.run import num_steps_of, run_cost
from paceline.rehearse.trace import write_alone_trace, write_cluster_trace
from paceline.steps import Capture, Step
from paceline.strategies import Strategy, make_strategy, strategy_class
from paceline.traces.trace import check_trace_path

MEASURED_LINK_UNCERTAINTY = 0.1
"""Of exposed communication over links that `paceline measure links` measured."""
NOMINAL_LINK_UNCERTAINTY = 0.3
"""Of exposed communication over links whose figures are a data sheet's."""

MOST_WORKERS = 10_000_000
"""Of a cluster: every node's number of workers is kept."""


def predict(
    step: Step | Capture,
    *,
    device: str | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    workers: int | None = None,
    strategy: str | Strategy = "sync",
    model: KernelModel | Path | None = None,
    jitter: float | None = None,
    samples: int | None = None,
    trace: str | Path | None = None,
    **options: Any,
) -> Prediction:
    """What a training step costs: how long, what limits it, does it fit.

    Args:
        step: What is trained. A capture of it does for one worker.
        device: One worker's device, by its name or its figures; by default the cluster's, or an
            H200.
        cluster: A preset's name, a TOML file or a :class:`~paceline.Cluster`. Without one, one
            worker trains alone.
        nodes: Another number of nodes than the cluster has.
        workers: Another number of workers on every node.
        strategy: A name or a strategy; its own code runs, on fake tensors and virtual teams.
        model: A kernel model, or a file that `paceline fit` wrote, in place of what comes with
            paceline.
        jitter: How much a worker's time varies from step to step (standard deviation over mean);
            by default the cluster's own figure.
        samples: Samples of the whole run, all epochs together; the prediction then has a ``run``.
        trace: A file (``.json`` or ``.json.gz``) for the predicted steps, as Perfetto reads them.
        **options: The strategy's options.

    """
    if trace is not None:
        check_trace_path(trace)
    if samples is not None and samples < 1:
        raise ValueError(f"A run has at least one sample, not {samples}.")
    if jitter is not None and not 0 <= jitter < math.inf:
        raise ValueError(f"Workers' times vary by 0 or more of their mean, not by {jitter}.")
    if cluster is None and not nodes is workers is None:
        raise ValueError("Nodes and workers are a cluster's; say which one.")
    make_strategy(strategy, **options)  # what is wrong with it is said before work begins
    chosen = None if cluster is None else _on(device, _resized(cluster, nodes, workers))
    capture = step if isinstance(step, Capture) else captured(step)
    models = _models(chosen, device, model)
    if chosen is None or chosen.num_workers == 1:
        (own,) = models.values()
        slowdown = 1.0 if chosen is None else chosen.node_kinds[0].slowdown
        alone = compute_cost(capture, own, slowdown=slowdown)
        if trace is not None:
            write_alone_trace(trace, capture, alone)
        found = _warned_of_recurrence(_alone(capture, own, alone), step, models)
        return found if samples is None else _with_run(found, samples, {"all": None}, chosen)
    if isinstance(step, Capture):
        raise ValueError("A cluster's prediction needs the step itself, not only its capture.")
    if samples is not None:
        options = _with_length(strategy, options, samples, chosen, capture.batch)
    rehearsal = rehearsed(step, strategy, chosen.workers_per_node, options)
    timed = rehearsal.time(chosen, models, jitter=jitter, with_spans=trace is not None)
    found = _together(
        capture, chosen, models, timed, strategy=rehearsal.strategy, extra=rehearsal.extra_bytes
    )
    found = _warned_of_recurrence(found, step, models)
    if trace is not None:
        write_cluster_trace(trace, found, chosen, timed)
    if samples is None:
        return found
    return _with_run(found, samples, make_strategy(strategy, **options).phases(), chosen)


def _warned_of_recurrence(
    found: Prediction, step: Step | Capture, models: Mapping[str, KernelModel]
) -> Prediction:
    """Say that recurrent layers are not timed as they run; a capture does not know of them."""
    if isinstance(step, Capture):
        return found
    kinds = {type(one).__name__ for one in step.model.modules() if isinstance(one, nn.RNNBase)}
    if not kinds:
        return found
    on_cpus = all(is_serial(model) for model in models.values())
    seen = "1.2 to 4 times too slow on one core" if on_cpus else "2 to 23 times too slow on an H200"
    warning = (
        f"{', '.join(sorted(kinds))}: such a layer runs as one call, and is timed here step by "
        f"step; training with them was predicted {seen}."
    )
    return replace(found, warnings=(*found.warnings, warning))


def _with_length(
    strategy: str | Strategy,
    options: dict[str, Any],
    samples: int,
    cluster: Cluster,
    batch: int,
) -> dict[str, Any]:
    """Tell a strategy that wants to know it how long the run is."""
    if not isinstance(strategy, str) or "total_steps" in options or "total_epochs" in options:
        return options
    if "total_steps" not in strategy_class(strategy).options_type.model_fields:
        return options
    num_steps = num_steps_of(samples, workers=cluster.num_workers, batch=batch)
    return {**options, "total_steps": num_steps}


def _with_run(
    found: Prediction,
    samples: int,
    phases: Mapping[str, int | None],
    cluster: Cluster | None,
) -> Prediction:
    run = run_cost(
        samples=samples,
        num_steps=num_steps_of(samples, workers=found.workers, batch=found.batch),
        phases=phases,
        phases_s=found.phases_s or {"all": found.step_s},
        workers=found.workers,
        price_per_hour=None if cluster is None else cluster.price_per_hour,
    )
    return replace(found, run=run)


def _models(
    cluster: Cluster | None, device: str | Device | None, model: KernelModel | Path | None
) -> dict[str, KernelModel]:
    """The kernel model of each device of the cluster, or of the one that was asked for."""
    if isinstance(model, KernelModel):
        names = (
            {node.device.name for node in cluster.node_kinds} if cluster else {model.device.name}
        )
        return dict.fromkeys(sorted(names), model)
    if cluster is None:
        fallback = "h200" if model is None else ""
        return {"": load_kernel_model(known_device(device or fallback), model=model)}
    if model is not None and device is None:
        # Who measured their own kernels means them, whatever the cluster's file calls its devices.
        own = load_kernel_model("", model=model)
        return {node.device.name: own for node in cluster.node_kinds}
    devices = {node.device.name: node.device for node in cluster.node_kinds}
    return {
        name: load_kernel_model(known_device(own), model=model)
        for name, own in sorted(devices.items())
    }


def known_device(device: str | Device) -> str | Device:
    """A preset's device is the built-in one of its name, which may have a profile."""
    if isinstance(device, Device) and device.name in device_names():
        return device.name if load_device(device.name) == device else device
    return device


def _resized(cluster: str | Path | Cluster, nodes: int | None, workers: int | None) -> Cluster:
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if workers is not None:
        chosen = chosen.with_workers_per_node(workers)
    if nodes is not None:
        chosen = chosen.with_nodes(nodes)
    if chosen.num_workers > MOST_WORKERS:
        raise ValueError(
            f"{chosen.num_workers:,} workers are more than the {MOST_WORKERS:,} of the largest "
            "cluster that can be predicted."
        )
    return chosen


def _on(device: str | Device | None, cluster: Cluster) -> Cluster:
    """The cluster with another device in every node, if one is given."""
    if device is None:
        return cluster
    own = load_device(device) if isinstance(device, str) else device
    return cluster.replace(
        node_kinds=tuple(node.replace(device=own) for node in cluster.node_kinds)
    )


def _alone(capture: Capture, model: KernelModel, alone: Compute) -> Prediction:
    """One worker, and nobody to wait for."""
    line = alone.timeline
    return Prediction(
        model=capture.name,
        device=model.device.name,
        nodes=1,
        workers=1,
        batch=capture.batch,
        precision=capture.precision,
        strategy="none",
        step_s=line.step_s,
        compute_s=line.device_s,
        exposed_communication_s=0.0,
        host_s=line.step_s - line.device_s,
        host_issue_s=line.host_s,
        throughput_per_s=capture.batch / line.step_s,
        scaling_efficiency=1.0,
        memory_bytes=alone.memory_bytes,
        memory_limit_bytes=model.device.memory_bytes,
        fits=alone.memory_bytes <= model.device.memory_bytes,
        bottleneck=alone.bottleneck,
        method=alone.method,
        extrapolated=model.is_carried,
        uncertainty=alone.uncertainty,
        warnings=alone.warnings,
    )


def _together(
    capture: Capture,
    cluster: Cluster,
    models: dict[str, KernelModel],
    timed: Timed,
    *,
    strategy: str,
    extra: int,
) -> Prediction:
    """All workers of a cluster; its slowest kind of worker tells where the time goes."""
    kinds = [
        (compute_cost(capture, models[node.device.name], slowdown=node.slowdown), node, count)
        for node, count in distinct_nodes(cluster)
    ]
    slowest, node, _ = max(kinds, key=lambda kind: kind[0].timeline.step_s)
    base = _alone(capture, models[node.device.name], slowest)
    step_s = float(timed.step_s)
    exposed_s = max(step_s - base.step_s, 0.0)
    bottleneck: Bottleneck = "communication" if exposed_s > step_s / 2 else base.bottleneck
    # What the workers would do if nobody waited for anybody.
    unhindered_per_s = sum(
        count * node.workers_per_node * capture.batch / alone.timeline.step_s
        for alone, node, count in kinds
    )
    throughput_per_s = cluster.num_workers * capture.batch / step_s
    fits = all(
        alone.memory_bytes + extra <= models[node.device.name].device.memory_bytes
        for alone, node, _ in kinds
    )
    return replace(
        base,
        device=", ".join(dict.fromkeys(node.device.name for node in cluster.node_kinds)),
        nodes=cluster.num_nodes,
        workers=cluster.num_workers,
        strategy=strategy,
        step_s=step_s,
        exposed_communication_s=exposed_s,
        host_s=step_s - exposed_s - base.compute_s,
        throughput_per_s=throughput_per_s,
        scaling_efficiency=throughput_per_s / unhindered_per_s,
        memory_bytes=base.memory_bytes + extra,
        fits=fits,
        bottleneck=bottleneck,
        uncertainty=_uncertainty(base, exposed_s / step_s, cluster),
        phases_s={name: float(seconds) for name, seconds in timed.phases_s().items()},
        extrapolated=any(models[node.device.name].is_carried for _, node, _ in kinds),
        warnings=(*_device_warnings(alone for alone, _, _ in kinds), *_link_warnings(cluster)),
    )


def link_uncertainty(cluster: Cluster) -> float:
    """Of exposed communication over a cluster's links: one standard deviation, relative."""
    return NOMINAL_LINK_UNCERTAINTY if _link_warnings(cluster) else MEASURED_LINK_UNCERTAINTY


def _uncertainty(base: Prediction, exposed_share: float, cluster: Cluster) -> float:
    link = link_uncertainty(cluster)
    return float(np.hypot((1 - exposed_share) * base.uncertainty, exposed_share * link))


def _device_warnings(kinds: Iterable[Compute]) -> tuple[str, ...]:
    """What is to be said about any kind of worker, once."""
    return tuple(dict.fromkeys(warning for kind in kinds for warning in kind.warnings))


def _link_warnings(cluster: Cluster) -> tuple[str, ...]:
    used = [node.between for node in cluster.node_kinds] if cluster.num_nodes > 1 else []
    used += [node.inside for node in cluster.node_kinds if node.workers_per_node > 1]
    if all(link.source.startswith("measured") for link in used):
        return ()
    return (
        f"The links of {cluster.name} have the figures of their data sheets or of its file; "
        "'paceline measure links' measures those of a cluster that is there.",
    )
