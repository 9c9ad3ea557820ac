"""Host and device as a pipeline: one issues, the other follows, the slower sets the pace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each call of a step is issued, and when its work on the device begins and ends.

    Times are of a step in the middle of training, from the moment when the host issues its first
    call. The device may begin later: it may still be busy with the step before.
    """

    issued_s: Seconds
    begun_s: Seconds
    ended_s: Seconds
    step_s: float
    """From one step to the next."""
    host_s: float
    device_s: float


def run_timeline(host_calls_s: Seconds, device_calls_s: Seconds, *, serial: bool) -> Timeline:
    """Play two steps, one behind the other, and look at the second.

    ``serial``: the host computes what it issues, as on a CPU, and nothing overlaps.
    """
    host_s, device_s = float(host_calls_s.sum()), float(device_calls_s.sum())
    if serial:
        both = np.cumsum(host_calls_s + device_calls_s)
        return Timeline(
            issued_s=both - device_calls_s,
            begun_s=both - device_calls_s,
            ended_s=both,
            step_s=host_s + device_s,
            host_s=host_s,
            device_s=device_s,
        )
    issued = np.cumsum(host_calls_s)
    step_s = max(host_s, device_s)
    # A call's work ends at max over earlier calls j of (issued_j + the work from j on), in the
    # second step not before what the first one has left to do when the host is through with it.
    work = np.cumsum(device_calls_s)
    waits = np.maximum.accumulate(issued - (work - device_calls_s))
    backlog = float((work + waits)[-1]) - host_s if len(work) else 0.0
    ended = work + np.maximum(waits, backlog)
    return Timeline(
        issued_s=issued,
        begun_s=ended - device_calls_s,
        ended_s=ended,
        step_s=step_s,
        host_s=host_s,
        device_s=device_s,
    )
