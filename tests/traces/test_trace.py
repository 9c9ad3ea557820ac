"""The measured trace: what workers did in some steps, in a file that viewers open."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import workloads
from jobs import run_job
from paceline.cluster.units import format_size
from paceline.teams import Workers
from paceline.traces.trace import TRACKS, Span, read_trace, write_trace
from paceline.train import attach
from paceline.train.buckets import Buckets

SPANS = [
    Span(0, "step", "step 3", 0.5, 0.75),
    Span(0, "compute", "forward", 0.5, 0.6),
    Span(0, "compute", "backward", 0.6, 0.75),
    Span(0, "world", "all_reduce 1 MB", 0.6, 0.7),
    Span(0, "world", "all_reduce 25 MB", 0.65, 0.75),
    Span(1, "background", "exchange", 0.0, 0.000001),
]
NAMES = {0: "node 0 worker 0", 1: "node 1 worker 0", 2: "node 1 worker 1"}


def by_time(spans: list[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.worker, span.start_s, span.track, span.end_s))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_survives_its_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    write_trace(path, SPANS, worker_names=NAMES, title="mine")
    spans, names = read_trace(path)
    assert names == NAMES
    assert by_time(spans) == by_time(SPANS)


def load_events(path: Path) -> list[dict[str, Any]]:
    """The events of a file, which must be as Chrome's format demands."""
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] == "ms"
    assert content["otherData"]["format"] == "paceline-trace-1"
    events: list[dict[str, Any]] = content["traceEvents"]
    for event in events:
        if event["ph"] == "M":
            assert set(event) == {"ph", "name", "pid", "tid", "args"}
        else:
            assert set(event) == {"ph", "cat", "name", "pid", "tid", "ts", "dur"}
            assert event["ph"] == "X"
            assert isinstance(event["ts"], int)
            assert isinstance(event["dur"], int)
            assert event["dur"] >= 0
    return events


def threads_of(events: list[dict[str, Any]], pid: int) -> list[str]:
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {
        e["tid"]: e["args"]["sort_index"]
        for e in events
        if e["name"] == "thread_sort_index" and e["pid"] == pid
    }
    return [named[tid] for tid in sorted(order, key=lambda tid: order[tid])]


def assert_no_overlap(events: list[dict[str, Any]]) -> None:
    complete = [event for event in events if event["ph"] == "X"]
    for thread in {event["tid"] for event in complete}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in complete if e["tid"] == thread)
        assert all(one[1] <= other[0] for one, other in pairwise(own))


def test_the_file_is_what_viewers_expect(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, SPANS, worker_names=NAMES, title="mine")
    events = load_events(path)
    assert json.loads(path.read_text())["otherData"]["title"] == "mine"
    kinds = Counter(event["name"] for event in events if event["ph"] == "M")
    # The two collectives of worker 0 overlap, which one thread cannot show.
    assert kinds == {
        "process_name": 3,
        "process_sort_index": 3,
        "thread_name": 3 * len(TRACKS) + 1,
        "thread_sort_index": 3 * len(TRACKS) + 1,
    }
    assert threads_of(events, 1) == [
        *("step", "compute", "world", "world (2)", "node", "across", "background")
    ]
    assert threads_of(events, 3) == list(TRACKS)
    assert_no_overlap(events)


@pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.gz", "trace.json.bz2"])
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must have a name that ends in \.json or \.json\.gz"):
        write_trace(tmp_path / name, SPANS, worker_names=NAMES, title="mine")
    model, optimizer = workloads.build("plain", "momentum")
    with pytest.raises(ValueError, match=re.escape(name)):
        attach(model, optimizer, "sync", trace=tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    with pytest.raises(ValueError, match="not a trace that paceline wrote"):
        read_trace(path)


@pytest.mark.parametrize("steps", [(-1, 3), (3, 3), (5, 2)])
def test_impossible_steps_are_refused(steps: tuple[int, int]) -> None:
    model, optimizer = workloads.build("plain", "momentum")
    with pytest.raises(ValueError, match=re.escape(f"trace_steps={steps} must be the first step")):
        attach(model, optimizer, "sync", trace="trace.json", trace_steps=steps)


def train(
    workers: Workers, num_steps: int, model_kind: str, strategy: str, options: dict[str, Any]
) -> list[float]:
    """Train; the parameters in the end."""
    model, optimizer = workloads.build(model_kind, "momentum")
    with attach(model, optimizer, strategy, workers=workers, **options) as pace:
        for step in range(num_steps):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()
            if step == 4:
                pace.report(1.0)
    values: list[float] = workloads.flat_state(model).tolist()
    return values


def bucket_names(model_kind: str) -> list[str]:
    parameters = list(workloads.build_model(model_kind).parameters())
    buckets = Buckets(parameters, lambda _: None).buckets
    return [f"all_reduce {format_size(bucket.flat.nbytes)}" for bucket in buckets]


def of_track(spans: list[Span], track: str) -> list[Span]:
    return sorted((s for s in spans if s.track == track), key=lambda s: (s.start_s, s.end_s))


def assert_steps_are_tiled(spans: list[Span], numbers: range) -> None:
    """One worker's steps follow each other, and their phases fill them without a gap."""
    steps, phases = of_track(spans, "step"), of_track(spans, "compute")
    assert [span.name for span in steps] == [f"step {number}" for number in numbers]
    assert (phases[0].start_s, phases[-1].end_s) == (steps[0].start_s, steps[-1].end_s)
    for track in (steps, phases):
        assert all(one.end_s == other.start_s for one, other in pairwise(track))
    assert {span.name for span in phases} <= {"forward", "backward", "optimizer", "merge", "wait"}
    for step in steps:
        inside = [s for s in phases if step.start_s <= s.start_s and s.end_s <= step.end_s]
        order = [span.name for span in inside if span.name != "wait"]
        positions = [order.index(n) for n in ("forward", "backward", "optimizer", "merge")]
        assert positions == sorted(positions)


def test_sync_is_traced_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = {"trace": path, "trace_steps": (2, 5)}
    traced = run_job(train, 7, "wide", "sync", options, nodes=(2, 1))
    assert traced == run_job(train, 7, "wide", "sync", {}, nodes=(2, 1))

    spans, names = read_trace(path)
    assert names == {0: "node 0 worker 0", 1: "node 0 worker 1", 2: "node 1 worker 0"}
    assert_no_overlap(load_events(path))
    buckets = bucket_names("wide")
    assert len(buckets) > 1
    for rank in names:
        own = [span for span in spans if span.worker == rank]
        assert_steps_are_tiled(own, range(2, 5))
        for step in of_track(own, "step"):
            inside = [s for s in of_track(own, "world") if step.start_s <= s.start_s < step.end_s]
            assert [span.name for span in inside] == buckets
            # Gradients are used when all of them are there.
            optimizer = next(
                s
                for s in of_track(own, "compute")
                if s.name == "optimizer" and s.start_s >= step.start_s
            )
            assert all(span.end_s <= optimizer.start_s for span in inside)
        assert not [span for span in own if span.track in ("node", "across", "background")]


def test_daso_is_traced_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    daso = {"period": 3, "delay": 1, "warmup_steps": 2, "late": "wait"}
    options = {**daso, "trace": path, "trace_steps": (0, 9)}
    traced = run_job(train, 10, "plain", "daso", options, nodes=(2, 2))
    assert traced == run_job(train, 10, "plain", "daso", daso, nodes=(2, 2))

    spans, names = read_trace(path)
    model_bytes = 4 * sum(p.numel() for p in workloads.build_model("plain").parameters())
    health, values = format_size(2 * 4), format_size(model_bytes)
    for rank in names:
        own = [span for span in spans if span.worker == rank]
        assert_steps_are_tiled(own, range(9))
        # After steps 1 and 2, which warm up, and after 5 and 8; each by the next worker in turn.
        exchanges = of_track(own, "background")
        assert [span.name for span in exchanges] == ["exchange"] * 4
        is_front = [number % 2 == rank % 2 for number in range(4)]
        for exchange, is_own_turn in zip(exchanges, is_front, strict=True):
            inside = [
                span
                for track in ("across", "node")
                for span in of_track(own, track)
                if exchange.start_s <= span.start_s
                and span.end_s <= exchange.end_s
                and (track == "across" or span.name.startswith("broadcast"))
            ]
            assert [(span.track, span.name) for span in inside] == [
                *([("across", f"all_reduce {health}"), ("across", f"all_reduce {values}")]
                  if is_own_turn else []),
                ("node", f"broadcast {health}"),
                ("node", f"broadcast {values}"),
            ]  # fmt: skip
        on_node = Counter(span.name for span in own if span.track == "node")
        assert on_node == {
            bucket_names("plain")[0]: 9,
            f"broadcast {health}": 4,
            f"broadcast {values}": 4,
        }
        assert len(of_track(own, "across")) == 2 * sum(is_front)
        # The one metric that was reported, between two steps.
        assert [span.name for span in of_track(own, "world")] == ["all_reduce 8 B"]


def accumulate_and_go_on(workers: Workers, path: str) -> None:
    """A loop with micro-batches; more steps after the trace was written."""
    model, optimizer = workloads.build("plain", "momentum")
    pace = attach(model, optimizer, "sync", workers=workers, trace=path, trace_steps=(1, 30))

    def step(number: int) -> None:
        optimizer.zero_grad()
        with pace.accumulate():
            torch.autograd.backward(workloads.batch_loss(model, number, workers.world.rank))
        torch.autograd.backward(workloads.batch_loss(model, number + 50, workers.world.rank))
        optimizer.step()

    step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="no step was traced"):
            pace.finish()
    for number in range(1, 5):
        step(number)
    pace.finish()
    step(5)
    pace.finish()
    pace.detach()


def test_the_first_finish_after_a_traced_step_writes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run_job(accumulate_and_go_on, str(path), nodes=(2,))
    spans, names = read_trace(path)
    for rank in names:
        assert_steps_are_tiled([s for s in spans if s.worker == rank], range(1, 5))


def attach_plainly(workers: Workers) -> bool:
    model: nn.Module
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "daso", workers=workers) as pace:
        return pace.workers is workers


def test_without_a_trace_nothing_is_wrapped() -> None:
    assert run_job(attach_plainly, nodes=(1,)) == [True]
