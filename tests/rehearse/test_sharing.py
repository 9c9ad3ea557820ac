"""Workers that are alike: what one of them works out, the others take over."""

from __future__ import annotations

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.sharing import Sharing
from paceline.rehearse.worker_clock import WorkerClock


def test_equal_clocks_are_advanced_once() -> None:
    sharing, times = Sharing(), np.array([1.0, 2.0])
    calls: list[Numbers] = []

    def hold(clock: WorkerClock, until_s: Numbers) -> Numbers:
        calls.append(until_s)
        clock.hold(until_s, host=True)
        return clock.ready_s

    one, other, later = (WorkerClock(device_s=times) for _ in range(3))
    later.own_variance = 1e-6
    until_s = np.array([1.5, 1.5])
    found = [sharing.advance(clock, hold, until_s) for clock in (one, other, later)]
    assert len(calls) == 2
    assert found[0] is found[1]
    assert all(a is b for a, b in zip(one.numbers, other.numbers, strict=True))
    assert later.own_variance == 1e-6
    np.testing.assert_array_equal(np.asarray(later.device_s), [1.5, 2.0])
    sharing.advance(other, hold, until_s)  # has other times by now
    assert len(calls) == 3


def test_equal_times_become_the_same_and_others_do_not() -> None:
    sharing = Sharing()
    first = np.array([1.0, 2.0, 3.0, 4.0])
    assert sharing.same(first) is first
    assert sharing.same(first.copy()) is first
    other = np.array([1.0, 2.5, 3.0, 4.0])  # looks the same at both ends and in the middle
    assert sharing.same(other) is other
    assert sharing.same(2.0) == 2.0
