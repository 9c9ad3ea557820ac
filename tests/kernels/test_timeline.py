"""Host and device as a pipeline, against a simulation of single events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.timeline import run_timeline

durations = st.floats(0.0, 5.0) | st.just(0.0)
calls = st.lists(st.tuples(durations, durations), min_size=1, max_size=12)

Events = list[tuple[float, float, float]]


def simulate(host: list[float], device: list[float], num_steps: int) -> list[Events]:
    """Of each step: when every call is issued, begins and ends, from the step's first moment."""
    now = free = 0.0
    steps: list[Events] = []
    for _ in range(num_steps):
        origin = now
        events = []
        for issue_s, work_s in zip(host, device, strict=True):
            now += issue_s
            begun = max(now, free)
            free = begun + work_s
            events.append((now - origin, begun - origin, free - origin))
        steps.append([(a, b, c) for a, b, c in events])
    return steps


def ends(host: list[float], device: list[float], num_steps: int) -> list[float]:
    """When the device has ended each step."""
    total = sum(host)
    return [
        events[-1][2] + index * total
        for index, events in enumerate(simulate(host, device, num_steps))
    ]


@given(calls)
def test_a_step_takes_what_the_simulation_takes_from_step_to_step(
    pairs: list[tuple[float, float]],
) -> None:
    host, device = (list(each) for each in zip(*pairs, strict=True))
    line = run_timeline(np.array(host), np.array(device), serial=False)
    moments = ends(host, device, 20)
    assert line.step_s == pytest.approx((moments[-1] - moments[1]) / 18, abs=1e-9)
    assert (line.host_s, line.device_s) == pytest.approx((sum(host), sum(device)))


@given(calls)
def test_every_call_of_the_second_step_is_where_the_simulation_has_it(
    pairs: list[tuple[float, float]],
) -> None:
    host, device = (list(each) for each in zip(*pairs, strict=True))
    line = run_timeline(np.array(host), np.array(device), serial=False)
    issued, begun, ended = zip(*simulate(host, device, 2)[1], strict=True)
    assert line.issued_s == pytest.approx(list(issued), abs=1e-9)
    assert line.begun_s == pytest.approx(list(begun), abs=1e-9)
    assert line.ended_s == pytest.approx(list(ended), abs=1e-9)


@given(calls)
def test_where_the_host_is_slower_every_later_step_is_like_the_second(
    pairs: list[tuple[float, float]],
) -> None:
    host, device = (list(each) for each in zip(*pairs, strict=True))
    if sum(host) < sum(device):
        host, device = device, host
    line = run_timeline(np.array(host), np.array(device), serial=False)
    late = simulate(host, device, 9)[8]
    assert line.ended_s == pytest.approx([end for _, _, end in late], abs=1e-9)


@given(calls)
def test_on_a_cpu_nothing_overlaps(pairs: list[tuple[float, float]]) -> None:
    host, device = (list(each) for each in zip(*pairs, strict=True))
    line = run_timeline(np.array(host), np.array(device), serial=True)
    now, ended = 0.0, []
    for issue_s, work_s in pairs:
        now += issue_s + work_s
        ended.append(now)
    assert line.ended_s == pytest.approx(ended)
    assert line.begun_s == pytest.approx([e - d for e, d in zip(ended, device, strict=True)])
    assert line.step_s == pytest.approx(sum(host) + sum(device))
