from __future__ import annotations

import numpy as np
import pytest

from paceline.collectives import Numbers, Route
from paceline.collectives.formulas import ring_all_reduce_s
from paceline.measure.link_fit import fit_constants, fit_route, mean_error

SIZES = 2.0 ** np.arange(16, 26)


def predict(route: Route) -> Numbers:
    return ring_all_reduce_s(SIZES, 4, route)


@pytest.mark.parametrize("latency_s", [1e-6, 2e-4])
@pytest.mark.parametrize("bandwidth", [1.25e7, 3e9, 2e11])
def test_latency_and_bandwidth_are_found_again(latency_s: float, bandwidth: float) -> None:
    true = Route(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    found = fit_route(predict, list(np.asarray(predict(true))))
    assert mean_error(predict(found), predict(true)) < 1e-3
    assert found.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.02)
    assert found.half_bytes == 0 or found.half_bytes < 100


def test_an_efficiency_is_found_again() -> None:
    true = Route(latency_s=5e-5, bandwidth_bytes_per_s=1e9, half_bytes=3e5)
    found = fit_route(predict, list(np.asarray(predict(true))))
    assert found.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.05)
    assert found.half_bytes == pytest.approx(3e5, rel=0.2)
    assert mean_error(predict(found), predict(true)) < 0.01


def test_noise_does_not_make_an_efficiency() -> None:
    true = Route(latency_s=5e-5, bandwidth_bytes_per_s=1e9)
    noise = np.random.default_rng(1).normal(1, 0.03, SIZES.size)
    found = fit_route(predict, list(np.asarray(predict(true)) * noise))
    assert found.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.1)
    assert mean_error(predict(found), predict(true)) < 0.05


def test_constants_minimise_the_mean_error() -> None:
    measured = np.array([3.0, 5.0, 9.0])
    found = fit_constants(lambda c: c[0] + c[1] * np.array([1.0, 2.0, 4.0]), (0.1, 0.1), measured)
    assert found == pytest.approx([1.0, 2.0], rel=1e-3)


def test_what_weighs_more_is_met_more_closely() -> None:
    true = Route(latency_s=5e-5, bandwidth_bytes_per_s=1e9)
    # Three small messages out of ten are slower than any link explains together with the others.
    odd = np.where(SIZES < 5e5, 4.0, 1.0)
    times_s = np.asarray(predict(true)) * odd

    def error_of_large_ones(weights: list[float] | None) -> float:
        found = fit_route(predict, list(times_s), weights=weights)
        return mean_error(np.asarray(predict(found))[3:], times_s[3:])

    assert error_of_large_ones(list(np.sqrt(SIZES))) < error_of_large_ones(None)
    assert error_of_large_ones(list(np.sqrt(SIZES))) < 0.03


def test_times_that_do_not_grow_with_size_do_not_make_an_endless_bandwidth() -> None:
    times_s = np.random.default_rng(2).normal(5e-4, 2e-5, SIZES.size)
    times_s.sort()
    found = fit_route(predict, list(times_s[::-1]))
    fastest = np.max(2 * 3 / 4 * SIZES / times_s)
    assert fastest < found.bandwidth_bytes_per_s < 30 * fastest
    assert mean_error(predict(found), times_s) < 0.1
