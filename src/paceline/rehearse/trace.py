"""Predicted steps as traces, with the tracks and the names of a measured run's."""

from __future__ import annotations

from pathlib import Path

from paceline.cluster import Cluster
from paceline.rehearse.compute import Compute
from paceline.rehearse.prediction import Prediction
from paceline.rehearse.timeline import Timeline
from paceline.steps import Capture
from paceline.traces.trace import Span, write_trace


def write_cluster_trace(
    path: str | Path, prediction: Prediction, cluster: Cluster, timeline: Timeline
) -> None:
    """The recorded steps of the workers that were played."""
    names = {}
    for place, role in enumerate(timeline.roles):
        stands_for = "" if len(timeline.roles) >= cluster.num_workers else " (for all alike)"
        names[place] = f"node {role.node_kind} worker {role.index}{stands_for}"
    title = (
        f"{prediction.model}, {prediction.strategy}, predicted for {prediction.workers} workers "
        f"of {cluster.name}"
    )
    write_trace(path, timeline.played.spans, worker_names=names, title=title)


def write_alone_trace(path: str | Path, capture: Capture, alone: Compute) -> None:
    """One step of one worker, operator by operator."""
    line = alone.timeline
    spans = [Span(0, "step", "step 0", 0.0, float(line.ended_s[-1]))]
    spans += [
        Span(0, "compute", f"{call.phase}: {call.op}", float(begun_s), float(ended_s))
        for call, begun_s, ended_s in zip(capture.calls, line.begun_s, line.ended_s, strict=True)
        if ended_s > begun_s
    ]
    write_trace(path, spans, worker_names={0: "worker 0"}, title=f"{capture.name}, predicted")
