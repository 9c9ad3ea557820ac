"""Predict a training step: on one device, or on a cluster under a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.device import Device
from paceline.kernels.library import load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.rehearse.compute import Compute, compute_cost
from paceline.rehearse.prediction import Bottleneck, Prediction
from paceline.rehearse.rehearsal import rehearse
from paceline.steps import Capture, Step, capture_step
from paceline.strategies import Strategy


def predict(
    step: Step | Capture,
    *,
    device: str | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    workers: int | None = None,
    strategy: str | Strategy = "sync",
    model: KernelModel | Path | None = None,
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
        **options: The strategy's options.

    """
    capture = step if isinstance(step, Capture) else capture_step(step)
    chosen = None if cluster is None else _resized(cluster, nodes, workers)
    if not isinstance(model, KernelModel):
        fallback = chosen.nodes[0].device if chosen is not None else "h200"
        model = load_kernel_model(_known(device or fallback), model=model)
    alone = compute_cost(capture, model)
    if chosen is None or chosen.num_workers == 1:
        return _prediction(capture, model, alone, alone.timeline.step_s, strategy="none")
    if isinstance(step, Capture):
        raise ValueError("A cluster's prediction needs the step itself, not only its capture.")
    rehearsal = rehearse(
        step,
        strategy,
        num_nodes=chosen.num_nodes,
        workers_per_node=max(chosen.workers_per_node),
        capture=capture,
        **options,
    )
    timed = rehearsal.time(chosen, model)
    return _prediction(
        capture,
        model,
        alone,
        timed.step_s,
        strategy=rehearsal.strategy,
        nodes=chosen.num_nodes,
        workers=chosen.num_workers,
        phases_s=timed.phases_s(),
        extra_bytes=rehearsal.recordings[0].extra_bytes,
    )


def _known(device: str | Device) -> str | Device:
    """A preset's device is the built-in one of its name, which may have a profile."""
    from paceline.cluster.devices import device_names, load_device

    if isinstance(device, Device) and device.name in device_names():
        return device.name if load_device(device.name) == device else device
    return device


def _resized(cluster: str | Path | Cluster, nodes: int | None, workers: int | None) -> Cluster:
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if workers is not None:
        chosen = chosen.with_workers(workers)
    return chosen if nodes is None else chosen.with_nodes(nodes)


def _prediction(
    capture: Capture,
    model: KernelModel,
    alone: Compute,
    step_s: float,
    *,
    strategy: str,
    nodes: int = 1,
    workers: int = 1,
    phases_s: dict[str, float] | None = None,
    extra_bytes: int = 0,
) -> Prediction:
    line = alone.timeline
    exposed_s = max(step_s - line.step_s, 0.0)
    bottleneck: Bottleneck = alone.bottleneck
    if exposed_s > step_s / 2:
        bottleneck = "communication"
    memory_bytes = alone.memory_bytes + extra_bytes
    return Prediction(
        model=capture.name,
        device=model.device.name,
        nodes=nodes,
        workers=workers,
        batch=capture.batch,
        precision=capture.precision,
        strategy=strategy,
        step_s=step_s,
        compute_s=line.device_s,
        exposed_communication_s=exposed_s,
        host_s=step_s - exposed_s - line.device_s,
        host_issue_s=line.host_s,
        throughput_per_s=workers * capture.batch / step_s,
        scaling_efficiency=line.step_s / step_s,
        memory_bytes=memory_bytes,
        memory_limit_bytes=model.device.memory_bytes,
        fits=memory_bytes <= model.device.memory_bytes,
        bottleneck=bottleneck,
        method=alone.method,
        extrapolated=model.is_carried,
        uncertainty=alone.uncertainty,
        phases_s=phases_s or {},
        warnings=alone.warnings,
    )
