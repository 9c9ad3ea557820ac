"""Traces: who did what and when, as files for Perfetto (ui.perfetto.dev) and chrome://tracing.

Measured and predicted runs are written in this one format, so that they can be laid over each
other. It is Chrome's trace-event format: a process for each worker, a thread for each track.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.units import format_size
from paceline.reading import parse_json, read_bytes, unpack

TRACKS = ("step", "compute", "world", "node", "across", "background")
"""The tracks of a worker, from top to bottom: what it computes, its teams, background work."""

_FORMAT = "paceline-trace-1"
_MOST_BYTES = 256 << 20
_MOST_US = 100 * 366 * 86_400 * 10**6


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a worker (its rank in the world) did from one moment to another."""

    worker: int
    track: str
    name: str
    start_s: float
    end_s: float


def collective_name(kind: str, num_bytes: int) -> str:
    """What a collective is called in a trace: ``"all_reduce 25 MB"``."""
    return f"{kind} {format_size(num_bytes)}"


def check_trace_path(path: str | Path) -> Path:
    """Refuse a name that viewers would not open."""
    if not str(path).endswith((".json", ".json.gz")):
        raise ValueError(f"the trace {str(path)!r} must have a name that ends in .json or .json.gz")
    return Path(path)


def write_trace(
    path: str | Path, spans: Iterable[Span], *, worker_names: Mapping[int, str], title: str
) -> None:
    """Write spans to a file for Perfetto. Times are kept to a microsecond.

    Args:
        path: A file named ``*.json``, or ``*.json.gz`` to compress it.
        spans: What the workers did.
        worker_names: A name for each worker, by its rank in the world.
        title: What the file shows.

    """
    target = check_trace_path(path)
    by_worker: dict[int, list[Span]] = {worker: [] for worker in sorted(worker_names)}
    for span in spans:
        by_worker[span.worker].append(span)
    content = {
        "traceEvents": [
            event
            for worker, own in by_worker.items()
            for event in _events_of_worker(worker, worker_names[worker], own)
        ],
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "format": _FORMAT},
    }
    data = json.dumps(content).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)


def read_trace(path: str | Path) -> tuple[list[Span], dict[int, str]]:
    """Read a trace that paceline wrote, measured or predicted.

    Args:
        path: The file, ``*.json`` or ``*.json.gz``.

    Returns:
        The spans, by worker and track, and the workers' names by their rank in the world.

    """
    target = check_trace_path(path)
    if not target.exists():
        raise ValueError(f"there is no trace {target}")
    data = read_bytes(target, most_bytes=_MOST_BYTES)
    if target.suffix == ".gz":
        data = unpack(data, str(target), most_bytes=_MOST_BYTES)
    return parse_trace(data, str(target))


def parse_trace(data: bytes, origin: str) -> tuple[list[Span], dict[int, str]]:
    """The spans and the workers' names of a trace's text.

    Args:
        data: JSON, not packed.
        origin: What errors begin with: the file's name.

    """
    try:
        content = parse_json(data)
        if content["otherData"]["format"] != _FORMAT:
            raise KeyError(_FORMAT)
        events = content["traceEvents"]
        kinds = [event["ph"] for event in events]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{origin} is not a trace that paceline wrote (format {_FORMAT})"
        ) from None
    try:
        spans = [_span(event) for event, kind in zip(events, kinds, strict=True) if kind == "X"]
        named = [event for event in events if event["name"] == "process_name"]
        names = {_whole(event["pid"]) - 1: str(event["args"]["name"]) for event in named}
    except (ValueError, KeyError, TypeError, OverflowError) as problem:
        raise ValueError(f"{origin}: an event of the trace is damaged: {problem!r}") from None
    return spans, names


def _span(event: Mapping[str, Any]) -> Span:
    track = event["cat"]
    if track not in TRACKS:
        raise ValueError(f"there is no track {track!r}")
    start_us, took_us = _whole(event["ts"], least=-_MOST_US), _whole(event["dur"])
    return Span(
        worker=_whole(event["pid"]) - 1,
        track=track,
        name=str(event["name"]),
        start_s=start_us / 1e6,
        end_s=(start_us + took_us) / 1e6,
    )


def _whole(value: Any, *, least: int = 0) -> int:
    """Workers and microseconds are whole numbers; a century of the latter is enough."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_US:
        raise ValueError(f"{value!r} is not a whole number from {least} to {_MOST_US}")
    return value


def _events_of_worker(worker: int, name: str, spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    # Viewers take process 0 for the idle one, and a thread with its process's number for the main
    # one, which they move to the top.
    pid = worker + 1
    yield _metadata("process_name", pid, 0, name=name)
    yield _metadata("process_sort_index", pid, 0, sort_index=worker)
    lanes = lanes_of(spans)
    for place, (label, own) in enumerate(lanes):
        tid = 1000 * pid + place
        yield _metadata("thread_name", pid, tid, name=label)
        yield _metadata("thread_sort_index", pid, tid, sort_index=place)
        for span in own:
            start_us, end_us = _microseconds(span)
            yield {
                "ph": "X",
                "cat": span.track,
                "name": span.name,
                "pid": pid,
                "tid": tid,
                "ts": start_us,
                "dur": end_us - start_us,
            }


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def lanes_of(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """Spans that do not overlap, with a label: viewers drop what overlaps on one thread."""
    lanes: dict[str, list[list[Span]]] = {track: [[]] for track in TRACKS}
    for span in sorted(spans, key=_microseconds):
        of_track = lanes[span.track]
        free = (lane for lane in of_track if not lane or _follows(span, lane[-1]))
        lane = next(free, None)
        if lane is None:
            lane = []
            of_track.append(lane)
        lane.append(span)
    return [
        (track if number == 1 else f"{track} ({number})", lane)
        for track, of_track in lanes.items()
        for number, lane in enumerate(of_track, start=1)
    ]


def _follows(span: Span, before: Span) -> bool:
    return _microseconds(span)[0] >= _microseconds(before)[1]


def _microseconds(span: Span) -> tuple[int, int]:
    # Whole ones: viewers cut fractions off, and neighbours would overlap by a nanosecond.
    return round(span.start_s * 1e6), round(span.end_s * 1e6)
