"""Stage 4, summarise: what a timeline says about the step, its parts and its bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.cluster import Cluster, Host, Node, load_host
from paceline.cluster.host import UNKNOWN_HOST
from paceline.kernels.model import KernelModel
from paceline.rehearse.compute import Compute, compute_cost
from paceline.rehearse.prediction import Bottleneck, Prediction
from paceline.rehearse.price import call_anew
from paceline.rehearse.rules import distinct_nodes
from paceline.rehearse.run import PhaseCost, num_steps_of, run_cost
from paceline.rehearse.step_prices import price_step
from paceline.rehearse.timeline import Timeline
from paceline.steps import Capture
from paceline.teams.owed import never_waited_for

MEASURED_LINK_UNCERTAINTY = 0.1
"""Of exposed communication over links that `paceline measure links` measured."""
NOMINAL_LINK_UNCERTAINTY = 0.3
"""Of exposed communication over links whose figures are a data sheet's."""


def summarise(
    timeline: Timeline,
    kernel_models: Mapping[str, KernelModel],
    cluster: Cluster,
    *,
    samples: int | None = None,
    captures: Mapping[Node, Capture] | None = None,
    host: Host = UNKNOWN_HOST,
    call: Callable[..., Any] = call_anew,
) -> Prediction:
    """All workers of a cluster; its slowest kind of worker tells where the time goes.

    Args:
        timeline: The times of the programs on this cluster.
        kernel_models: The kernel model of each device, by its name.
        cluster: The cluster.
        samples: Samples of the whole run, all epochs together; adds what the run costs.
        captures: The step with another batch, for kinds of node that have another one.
        host: What issues steps on nodes that do not say.
        call: Calls a function with arguments; a cache may know the result already.

    """
    recording = timeline.recording
    capture, extra = recording.capture, recording.extra_bytes
    kinds = []
    for node, count in distinct_nodes(cluster):
        model = kernel_models[node.device.name]
        issuer = host if node.host is None else load_host(node.host)
        own = (captures or {}).get(node, capture)
        prices = call(price_step, own, model, slowdown=node.slowdown, host=issuer.speed)
        cost = compute_cost(own, model, host=issuer, prices=prices)
        kinds.append((cost, model, node, count * own.batch))
    slowest, slowest_model, _, _ = max(kinds, key=lambda kind: kind[0].timeline.step_s)
    base = summarise_alone(capture, slowest_model, slowest)
    step_s = float(timeline.step_s)
    exposed_s = max(step_s - base.step_s, 0.0)
    bottleneck: Bottleneck = "communication" if exposed_s > step_s / 2 else base.bottleneck
    # What the workers would do if nobody waited for anybody.
    unhindered_per_s = sum(
        node.workers_per_node * node_samples / alone.timeline.step_s
        for alone, _, node, node_samples in kinds
    )
    num_samples = sum(node.workers_per_node * node_samples for _, _, node, node_samples in kinds)
    throughput_per_s = num_samples / step_s
    found = replace(
        base,
        device=", ".join(dict.fromkeys(node.device.name for node in cluster.node_kinds)),
        nodes=cluster.num_nodes,
        workers=cluster.num_workers,
        strategy=recording.strategy,
        step_s=step_s,
        exposed_communication_s=exposed_s,
        host_s=step_s - exposed_s - base.compute_s,
        throughput_per_s=throughput_per_s,
        scaling_efficiency=throughput_per_s / unhindered_per_s,
        memory_bytes=base.memory_bytes + extra,
        fits=all(
            alone.memory_bytes + extra <= model.device.memory_bytes for alone, model, _, _ in kinds
        ),
        bottleneck=bottleneck,
        uncertainty=_uncertainty(base, exposed_s / step_s, cluster),
        phases_s={name: float(seconds) for name, seconds in timeline.phases_s.items()},
        extrapolated=any(model.is_carried for _, model, _, _ in kinds),
        warnings=(
            *dict.fromkeys(warning for alone, _, _, _ in kinds for warning in alone.warnings),
            *_link_warnings(cluster),
            *(f"{never_waited_for(what)}." for what in recording.forgotten),
        ),
    )
    return found if samples is None else _with_run(found, timeline, samples, cluster)


def summarise_alone(
    capture: Capture,
    kernel_model: KernelModel,
    alone: Compute,
    *,
    samples: int | None = None,
    price_per_hour: float | None = None,
) -> Prediction:
    """One worker, and nobody to wait for.

    Args:
        capture: The step.
        kernel_model: What its kernels take.
        alone: What the step costs.
        samples: Samples of the whole run; adds what the run costs.
        price_per_hour: Of the worker, if it is known.

    """
    line = alone.timeline
    found = Prediction(
        model=capture.name,
        device=kernel_model.device.name,
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
        memory_limit_bytes=kernel_model.device.memory_bytes,
        fits=alone.memory_bytes <= kernel_model.device.memory_bytes,
        bottleneck=alone.bottleneck,
        method=alone.method,
        extrapolated=kernel_model.is_carried,
        uncertainty=alone.uncertainty,
        warnings=alone.warnings,
        notes=alone.notes,
    )
    if samples is None:
        return found
    num_steps = num_steps_of(samples, workers=1, batch=capture.batch)
    run = run_cost(
        samples=samples,
        num_steps=num_steps,
        counts={"all": num_steps},
        phases={"all": PhaseCost(rest_s=line.step_s)},
        workers=1,
        price_per_hour=price_per_hour,
    )
    return replace(found, run=run)


def _with_run(found: Prediction, timeline: Timeline, samples: int, cluster: Cluster) -> Prediction:
    recording, steps_s = timeline.recording, timeline.steps_s
    num_steps = num_steps_of(samples, workers=found.workers, batch=found.batch)
    run = run_cost(
        samples=samples,
        num_steps=num_steps,
        counts=recording.schedule.counts(num_steps),
        phases={
            name: PhaseCost(
                first_s=[float(steps_s[place]) for place in phase.places],
                rest_s=found.phases_s[name],
            )
            for name, phase in recording.phases.items()
        },
        workers=found.workers,
        price_per_hour=cluster.price_per_hour,
    )
    return replace(found, run=run)


def link_uncertainty(cluster: Cluster) -> float:
    """Of exposed communication over a cluster's links: one standard deviation, relative."""
    return NOMINAL_LINK_UNCERTAINTY if _link_warnings(cluster) else MEASURED_LINK_UNCERTAINTY


def _uncertainty(base: Prediction, exposed_share: float, cluster: Cluster) -> float:
    link = link_uncertainty(cluster)
    return float(np.hypot((1 - exposed_share) * base.uncertainty, exposed_share * link))


def _link_warnings(cluster: Cluster) -> tuple[str, ...]:
    used = [node.between for node in cluster.node_kinds] if cluster.num_nodes > 1 else []
    used += [node.inside for node in cluster.node_kinds if node.workers_per_node > 1]
    if all(link.source.startswith("measured") for link in used):
        return ()
    return (
        f"The links of {cluster.name} have the figures of their data sheets or of its file; "
        "'paceline measure links' measures those of a cluster that is there.",
    )
