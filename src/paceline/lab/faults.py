"""Faults by name: what goes wrong on a lab while a job runs on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.cluster import Cluster
from paceline.cluster.units import format_bandwidth, parse_bandwidth, parse_duration, parse_size
from paceline.lab.disk import DEFAULT_BYTES
from paceline.lab.layout import check_rate

FaultKind = Literal["kill", "start", "link", "stop", "fill"]

_MOST_DISK_BYTES = 1 << 30
_WORKER = re.compile(r"(?P<kind>kill|stop)\s+(?P<node>\d+):(?P<worker>\d+)")
_NODE = re.compile(r"(?P<kind>kill|start)\s+(?P<node>\d+)")
_LINK = re.compile(r"link\s+(?P<node>\d+)\s*(?:=\s*(?P<rate>\S.*)|\s(?P<down>down))")
_FILL = re.compile(r"fill\s+(?P<folder>[^=]*[^=\s])\s*(?:=\s*(?P<size>.+))?")
_FOR = re.compile(r"(?P<moment>.+?)\s+for\s+(?P<duration>.+)")

_EXAMPLES = (
    "'kill 1:0 at 30s' (a worker), 'kill 1 at 30s' (a node), 'start 1 at 60s', 'link 1 down at 30s "
    "for 10s', 'link 1=1mbit at 30s for 20s', 'stop 1:0 at 30s for 20s' or 'fill FOLDER at 30s'"
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong at a moment of a job; :func:`parse_fault` makes it from a text."""

    kind: FaultKind
    at_s: float
    """Seconds since the job was started."""
    for_s: float | None = None
    """After so many seconds all is well again; None: never."""
    node: int = 0
    worker: int | None = None
    """None for the whole node."""
    rate_bytes_per_s: float | None = None
    """Of the link; None: it is down."""
    folder: Path | None = None
    """Of the disk that is full."""
    size_bytes: int = DEFAULT_BYTES
    """Of that disk, which the lab makes for the purpose."""

    @property
    def place(self) -> str:
        """Whom it happens to."""
        if self.kind == "fill":
            return f"the disk {self.folder}"
        if self.kind == "link":
            return f"the link of node {self.node}"
        return f"node {self.node}" if self.worker is None else f"worker {self.node}:{self.worker}"

    def describe(self, *, is_over: bool = False) -> str:
        """What happens, in a few words."""
        if self.kind == "link":
            rate = self.rate_bytes_per_s
            bad = "is down" if rate is None else f"carries {format_bandwidth(rate, bits=True)}"
            return f"{self.place} {'is as before' if is_over else bad}"
        words = {
            "kill": ("is killed", ""),
            "start": ("is started again", ""),
            "stop": ("is stopped", "goes on"),
            "fill": ("is full", "has room again"),
        }
        return f"{self.place} {words[self.kind][is_over]}"

    def to_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return {**vars(self), "folder": None if self.folder is None else str(self.folder)}


def parse_fault(text: str, layout: Cluster) -> Fault:
    """A fault from a text, checked against the cluster it is in.

    Args:
        text: WHAT at TIME, and for some faults also for how long: ``kill 1:0 at 30s``.
        layout: The cluster that is emulated.
    """
    what, is_there, moment = text.strip().rpartition(" at ")
    if not is_there:
        raise ValueError(f"--fault {text!r} does not say when; end it with a time, as in 'at 30s'")
    lasting = _FOR.fullmatch(moment.strip())
    for_s = None if lasting is None else parse_duration(lasting["duration"])
    at_s = parse_duration(moment if lasting is None else lasting["moment"])
    fault = _parse_what(" ".join(what.split()), at_s, for_s)
    if fault is None:
        raise ValueError(f"--fault {text!r} is not understood; write {_EXAMPLES}")
    _check(text, fault, layout.workers_per_node)
    return fault


def parse_faults(texts: Sequence[str], layout: Cluster) -> list[Fault]:
    """Faults from the command line; at most one disk can be full."""
    faults = [parse_fault(text, layout) for text in texts]
    disks = {(fault.folder, fault.size_bytes) for fault in faults if fault.kind == "fill"}
    if len(disks) > 1:
        raise ValueError("--fault: one disk can be full in a job, and two were named")
    return faults


def _parse_what(what: str, at_s: float, for_s: float | None) -> Fault | None:
    if found := _WORKER.fullmatch(what):
        kind: FaultKind = "kill" if found["kind"] == "kill" else "stop"
        node, worker = int(found["node"]), int(found["worker"])
        return Fault(kind=kind, at_s=at_s, for_s=for_s, node=node, worker=worker)
    if found := _NODE.fullmatch(what):
        kind = "kill" if found["kind"] == "kill" else "start"
        return Fault(kind=kind, at_s=at_s, for_s=for_s, node=int(found["node"]))
    if found := _LINK.fullmatch(what):
        rate = None if found["down"] else parse_bandwidth(found["rate"])
        return Fault(
            kind="link", at_s=at_s, for_s=for_s, node=int(found["node"]), rate_bytes_per_s=rate
        )
    if found := _FILL.fullmatch(what):
        size = DEFAULT_BYTES if found["size"] is None else parse_size(found["size"])
        folder = Path(found["folder"]).absolute()
        return Fault(kind="fill", at_s=at_s, for_s=for_s, folder=folder, size_bytes=round(size))
    return None


def _check(text: str, fault: Fault, per_node: Sequence[int]) -> None:
    if fault.kind in ("kill", "start") and fault.for_s is not None:
        raise ValueError(f"--fault {text!r}: {fault.kind} has no duration; leave 'for …' out")
    if fault.kind == "stop" and fault.for_s is None:
        raise ValueError(f"--fault {text!r} does not say for how long; end it with 'for 20s'")
    if fault.rate_bytes_per_s is not None:
        check_rate(fault.rate_bytes_per_s)
    if not 1 << 20 <= fault.size_bytes <= _MOST_DISK_BYTES:
        raise ValueError(f"--fault {text!r}: the disk must hold between 1 MiB and 1 GiB")
    is_there = fault.node < len(per_node) and (fault.worker or 0) < per_node[fault.node]
    if not is_there:
        raise ValueError(
            f"--fault {text!r} names a node or worker that is not there; both count from 0, and "
            f"the nodes have {', '.join(map(str, per_node))} workers"
        )
