"""Predict a training step: on one device, or on a cluster under a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from paceline.cluster import Cluster
from paceline.cluster.device import Device
from paceline.kernels.model import KernelModel
from paceline.rehearse.cache import known_of
from paceline.rehearse.choice import Choice
from paceline.rehearse.compute import compute_cost
from paceline.rehearse.play import play
from paceline.rehearse.prediction import Prediction
from paceline.rehearse.price import price
from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.run import num_steps_of
from paceline.rehearse.setting import find_cluster, find_kernel_models
from paceline.rehearse.settle import settle
from paceline.rehearse.step_prices import is_serial
from paceline.rehearse.summarise import summarise, summarise_alone
from paceline.rehearse.timeline import Timeline
from paceline.rehearse.trace import write_alone_trace, write_cluster_trace
from paceline.steps import Capture, Step
from paceline.strategies import Strategy
from paceline.traces.trace import check_trace_path


def predict(
    step: Step | Capture,
    *,
    device: str | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    workers_per_node: int | None = None,
    strategy: str | Strategy = "sync",
    kernel_model: KernelModel | Path | None = None,
    jitter: float | None = None,
    samples: int | None = None,
    trace: str | Path | None = None,
    **options: Any,
) -> Prediction:
    """What a training step costs: how long, what limits it, does it fit.

    Args:
        step: What is trained. A capture of it is enough for one worker.
        device: One worker's device, by its name or its figures; by default the cluster's, or an
            H200.
        cluster: A preset's name, a TOML file or a :class:`~paceline.Cluster`. Without one, one
            worker trains alone.
        nodes: Another number of nodes than the cluster has.
        workers_per_node: Another number of workers on every node.
        strategy: A name or a strategy; its own code runs, on fake tensors and virtual teams.
        kernel_model: A kernel model, or a file that `paceline fit` wrote, in place of what comes
            with paceline.
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
    Choice(strategy=strategy, options=options).make()  # what is wrong is said before work begins
    chosen = find_cluster(cluster, device=device, nodes=nodes, workers_per_node=workers_per_node)
    models = find_kernel_models(chosen, device, kernel_model)
    if chosen is None or chosen.num_workers == 1:
        capture = step if isinstance(step, Capture) else known_of(step).capture
        found = _predict_alone(capture, chosen, *models.values(), samples=samples, trace=trace)
        return _warned_of_recurrence(found, step, models)
    if isinstance(step, Capture):
        raise ValueError("A cluster's prediction needs the step itself, not only its capture.")

    known = known_of(step)
    batch = known.capture.batch
    num_steps = samples and num_steps_of(samples, workers=chosen.num_workers, batch=batch)
    choice = Choice(strategy=strategy, options=options, num_steps=num_steps)

    def recorded(assumed: Assumptions) -> Recording:
        return known.recorded(step, choice, chosen.workers_per_node, assumed)

    def played(recording: Recording) -> Timeline:
        programs = price(recording, models, chosen, jitter=jitter, call=known.call)
        return play(programs, with_spans=trace is not None)

    timeline = settle(recorded, played)
    found = summarise(timeline, models, chosen, samples=samples, call=known.call)
    if trace is not None:
        write_cluster_trace(trace, found, chosen, timeline)
    return _warned_of_recurrence(found, step, models)


def _predict_alone(
    capture: Capture,
    cluster: Cluster | None,
    kernel_model: KernelModel,
    *,
    samples: int | None,
    trace: str | Path | None,
) -> Prediction:
    slowdown = 1.0 if cluster is None else cluster.node_kinds[0].slowdown
    alone = compute_cost(capture, kernel_model, slowdown=slowdown)
    if trace is not None:
        write_alone_trace(trace, capture, alone)
    price_per_hour = None if cluster is None else cluster.price_per_hour
    return summarise_alone(
        capture, kernel_model, alone, samples=samples, price_per_hour=price_per_hour
    )


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
