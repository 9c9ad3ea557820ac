"""Predict a training step: on one device, or on a cluster under a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from paceline.cluster import Cluster, Host, load_host
from paceline.cluster.device import Device
from paceline.cluster.host import PROFILED_HOST, UNKNOWN_HOST
from paceline.kernels.model import KernelModel
from paceline.rehearse.balanced import balanced_captures
from paceline.rehearse.cache import Known, known_of
from paceline.rehearse.choice import Choice
from paceline.rehearse.compute import compute_cost
from paceline.rehearse.play import play
from paceline.rehearse.prediction import Prediction
from paceline.rehearse.price import price
from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.rules import distinct_nodes, plain_node
from paceline.rehearse.run import num_steps_of
from paceline.rehearse.setting import find_cluster, find_kernel_models
from paceline.rehearse.settle import settle
from paceline.rehearse.soundness import refusing_nonsense
from paceline.rehearse.step_prices import is_serial, price_step
from paceline.rehearse.summarise import summarise, summarise_alone
from paceline.rehearse.timeline import Timeline
from paceline.rehearse.trace import write_alone_trace, write_cluster_trace
from paceline.steps import Capture, Step
from paceline.steps.batches import resized
from paceline.strategies import Strategy
from paceline.teams import CollectiveName
from paceline.teams.collectives import check_collective
from paceline.traces.trace import check_trace_path

_MOST_SAMPLES = 10**18
_MOST_JITTER = 10


@refusing_nonsense
def predict(
    step: Step | Capture,
    *,
    device: str | Device | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    workers_per_node: int | None = None,
    strategy: str | Strategy = "sync",
    collective: CollectiveName = "backend",
    kernel_model: KernelModel | Path | None = None,
    jitter: float | None = None,
    samples: int | None = None,
    shares: Literal["equal", "balanced"] = "equal",
    global_batch: int | None = None,
    compiled: bool = False,
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
        strategy: A name or a strategy; its own code runs, on fake tensors and virtual teams. Of
            ``"auto"``, what it would pick on this cluster.
        collective: By which algorithm teams sum and broadcast, as in :func:`~paceline.attach`;
            ``"auto"`` is the faster of ``"tree"`` and ``"backend"``.
        kernel_model: A kernel model, or a file that `paceline fit` wrote, in place of what comes
            with paceline.
        jitter: How much a worker's time varies from step to step (standard deviation over mean);
            by default the cluster's own figure.
        samples: Samples of the whole run, all epochs together; the prediction then has a ``run``.
        shares: On unequal nodes: ``"equal"`` gives all workers the step's batch; ``"balanced"``
            shares out the same global batch by speed and memory, as :meth:`paceline.Pace.loader`
            does.
        global_batch: With balanced shares, another global batch than the step's on every worker.
        compiled: Whether the model is compiled by `torch.compile`, the loss and the optimizer not.
            The prediction then has a ``compiled_ratio``, the step's time over the eager one's.
        trace: A file (``.json`` or ``.json.gz``) for the predicted steps, as Perfetto reads them.
        **options: The strategy's options.

    """
    if trace is not None:
        check_trace_path(trace)
    if samples is not None and not 1 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"A run has from 1 to {_MOST_SAMPLES:,} samples, not {samples}.")
    if jitter is not None and not 0 <= jitter <= _MOST_JITTER:
        raise ValueError(
            f"Workers' times vary by 0 to {_MOST_JITTER} times their mean, not by {jitter}."
        )
    if shares not in ("equal", "balanced"):
        raise ValueError(f"The shares {shares!r} are unknown; take 'equal' or 'balanced'.")
    check_collective(collective)
    if collective == "auto":
        tried: list[CollectiveName] = ["backend", "tree"]
        setting: dict[str, Any] = {
            "device": device,
            "cluster": cluster,
            "nodes": nodes,
            "workers_per_node": workers_per_node,
            "strategy": strategy,
            "kernel_model": kernel_model,
            "jitter": jitter,
            "samples": samples,
            "shares": shares,
            "global_batch": global_batch,
            **options,
        }
        by_name = {name: predict(step, collective=name, **setting) for name in tried}
        best = min(tried, key=lambda name: by_name[name].step_s)
        if trace is None:
            return by_name[best]
        return predict(step, collective=best, trace=trace, **setting)
    Choice(strategy=strategy, options=options).make()  # what is wrong is said before work begins
    chosen = find_cluster(cluster, device=device, nodes=nodes, workers_per_node=workers_per_node)
    models = find_kernel_models(chosen, device, kernel_model)
    if compiled:
        _check_compiled(step, models, shares)
    # Who brings measured kernels measured them, and their host, where training is to run.
    host = UNKNOWN_HOST if kernel_model is None else PROFILED_HOST
    if chosen is None or chosen.num_workers == 1:
        if global_batch is not None and isinstance(step, Step):
            step = resized(step, global_batch)
        capture = step if isinstance(step, Capture) else known_of(step, compiled=compiled).capture
        found = _predict_alone(
            capture, chosen, *models.values(), host=host, samples=samples, trace=trace
        )
        return _against_eager(found, step, models) if compiled else found
    if isinstance(step, Capture):
        raise ValueError("A cluster's prediction needs the step itself, not only its capture.")

    known = known_of(step, compiled=compiled)
    batch = known.capture.batch
    captures = None
    if shares == "balanced" and (global_batch or len(distinct_nodes(chosen)) > 1):
        total = global_batch or batch * chosen.num_workers
        captures = balanced_captures(step, chosen, models, global_batch=total)
    num_steps = samples and num_steps_of(samples, workers=chosen.num_workers, batch=batch)
    choice = Choice(strategy=strategy, options=options, num_steps=num_steps, collective=collective)

    def timed(choice: Choice, *, with_spans: bool = False) -> Timeline:
        def recorded(assumed: Assumptions) -> Recording:
            return known.recorded(step, choice, chosen.workers_per_node, assumed)

        def played(recording: Recording, *, left: object = None) -> Timeline:
            programs = price(
                recording, models, chosen, jitter=jitter, captures=captures, call=known.call
            )
            return play(programs, with_spans=with_spans)

        return settle(recorded, played)

    choice = choice.picked(
        lambda candidate: float(timed(candidate).step_s),
        alone_s=_alone_s(known, models, chosen),
        num_nodes=chosen.num_nodes,
    )
    timeline = timed(choice, with_spans=trace is not None)
    found = summarise(
        timeline, models, chosen, samples=samples, host=host, captures=captures, call=known.call
    )
    found = replace(found, strategy=choice.title)
    if captures is not None:
        batches = {node.name: captures[plain_node(node)].batch for node in chosen.node_kinds}
        found = replace(found, shares="balanced", batches=batches)
    if trace is not None:
        write_cluster_trace(trace, found, chosen, timeline)
    return _against_eager(found, step, models) if compiled else found


def _alone_s(known: Known, models: Mapping[str, KernelModel], cluster: Cluster) -> float:
    """A step of the slowest node's workers without any exchange."""
    found = []
    for node, _ in distinct_nodes(cluster):
        model = models[node.device.name]
        speed = load_host(node.host).speed
        prices = known.call(price_step, known.capture, model, slowdown=node.slowdown, host=speed)
        found.append(compute_cost(known.capture, model, prices=prices).timeline.step_s)
    return max(found)


def _predict_alone(
    capture: Capture,
    cluster: Cluster | None,
    kernel_model: KernelModel,
    *,
    host: Host,
    samples: int | None,
    trace: str | Path | None,
) -> Prediction:
    slowdown = 1.0 if cluster is None else cluster.node_kinds[0].slowdown
    if cluster is not None and cluster.node_kinds[0].host is not None:
        host = load_host(cluster.node_kinds[0].host)
    alone = compute_cost(capture, kernel_model, slowdown=slowdown, host=host)
    if trace is not None:
        write_alone_trace(trace, capture, alone)
    price_per_hour = None if cluster is None else cluster.price_per_hour
    return summarise_alone(
        capture, kernel_model, alone, samples=samples, price_per_hour=price_per_hour
    )


def _check_compiled(step: Step | Capture, models: Mapping[str, KernelModel], shares: str) -> None:
    if isinstance(step, Capture):
        raise ValueError("A compiled step's prediction needs the step itself, not its capture.")
    if shares != "equal":
        raise ValueError("Compiled steps are predicted with equal shares; leave one of them out.")
    if any(map(is_serial, models.values())):
        raise ValueError(
            "Compiled steps are predicted for GPUs alone; leave compiled out for a CPU, or name "
            "another device."
        )


def _against_eager(
    found: Prediction, step: Step | Capture, models: Mapping[str, KernelModel]
) -> Prediction:
    """Say how a compiled step compares with the eager one, on the slowest worker's device."""
    assert isinstance(step, Step)
    eager, compiled = (
        max(
            compute_cost(known_of(step, compiled=each).capture, model).timeline.step_s
            for model in models.values()
        )
        for each in (False, True)
    )
    # Peak memory of nine compiled steps on an H200 (docs/results/compiled_steps.json).
    note = "Memory is the eager step's; compiled ones took 0.51 to 1.00 of it on an H200."
    return replace(found, compiled_ratio=compiled / eager, warnings=(*found.warnings, note))
