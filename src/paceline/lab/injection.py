"""Makes faults happen to a job on a lab, at their moments."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from paceline.lab.faults import Fault
from paceline.lab.timetable import LabEvent

if TYPE_CHECKING:
    from paceline.lab.disk import Disk
    from paceline.lab.job import Job
    from paceline.lab.lab import Lab


class Injection:
    """The faults of one job.

    Args:
        lab: Where the job runs.
        job: The job.
        disk: The disk that can be full, if a fault needs one.
        tell: Called with a few words when something has happened.
    """

    def __init__(self, lab: Lab, job: Job, disk: Disk | None, tell: Callable[[str], None]) -> None:
        self._lab = lab
        self._job = job
        self._disk = disk
        self._tell = tell
        self._rates: dict[Fault, float] = {}

    def events(self, faults: Sequence[Fault]) -> list[LabEvent]:
        """What to do when."""
        begin = [LabEvent(at_s=each.at_s, act=partial(self._begin, each)) for each in faults]
        return begin + [
            LabEvent(at_s=each.at_s + each.for_s, act=partial(self._end, each))
            for each in faults
            if each.for_s is not None
        ]

    def _begin(self, fault: Fault) -> None:
        has_happened = True
        if fault.kind == "kill":
            has_happened = self._kill(fault)
        elif fault.kind == "start":
            has_happened = self._job.start_node(fault.node)
        elif fault.kind == "stop":
            has_happened = self._signal(fault, signal.SIGSTOP)
        elif fault.kind == "link":
            self._set_link(fault, is_bad=True)
        else:
            assert self._disk is not None
            self._disk.set_full(True)
        words = fault.describe()
        self._tell(words if has_happened else f"{fault.place} is not there for {fault.kind!r}")

    def _end(self, fault: Fault) -> None:
        if fault.kind == "stop":
            self._signal(fault, signal.SIGCONT)
        elif fault.kind == "link":
            self._set_link(fault, is_bad=False)
        else:
            assert self._disk is not None
            self._disk.set_full(False)
        self._tell(fault.describe(is_over=True))

    def _kill(self, fault: Fault) -> bool:
        if fault.worker is None:
            return self._job.kill_node(fault.node)
        return self._signal(fault, signal.SIGKILL)

    def _signal(self, fault: Fault, number: int) -> bool:
        assert fault.worker is not None
        return self._job.signal_worker(fault.node, fault.worker, number)

    def _set_link(self, fault: Fault, *, is_bad: bool) -> None:
        if fault.rate_bytes_per_s is None:
            self._lab.connect(fault.node, is_up=not is_bad)
        elif is_bad:
            self._rates[fault] = self._lab.rate_bytes_per_s(fault.node)
            self._lab.set_rate(fault.rate_bytes_per_s, node=fault.node)
        else:
            self._lab.set_rate(self._rates[fault], node=fault.node)
