from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from paceline.measure.real_step import covered_s


def test_kernels_beside_each_other_count_once() -> None:
    assert covered_s([]) == 0.0
    assert covered_s([(5.0, 8.0), (0.0, 2.0)]) == pytest.approx(5e-6)  # with a rest
    assert covered_s([(0.0, 4.0), (1.0, 3.0)]) == pytest.approx(4e-6)  # one within the other
    assert covered_s([(0.0, 4.0), (3.0, 6.0), (6.0, 7.0)]) == pytest.approx(7e-6)


def test_as_many_moments_as_are_covered() -> None:
    random = np.random.default_rng(0)
    spans = [(begin, begin + length) for begin, length in random.integers(0, 50, (40, 2)) * 2.0]
    moments = np.arange(0.5, 200.0)
    covered = sum(any(begin < moment < end for begin, end in spans) for moment in moments)
    assert covered_s(spans) == pytest.approx(covered * 1e-6)


def test_the_profiler_tells_what_is_asked_of_it() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        torch.ones(64, 64) @ torch.ones(64, 64)
        with torch.profiler.record_function("named"):
            pass
    events: list[FunctionEvent] = list(profiler.events())
    spans = [(each.time_range.start, each.time_range.end) for each in events]
    assert 0 < covered_s(spans) < sum(end - begin for begin, end in spans) / 1e6
    assert [each.name for each in events if each.is_user_annotation] == ["named"]
