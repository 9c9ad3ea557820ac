"""How late the slowest of many workers is whose times vary."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.collectives import Numbers

# Between these, both change smoothly with the logarithm; the first are exact.
_GRID = np.unique(np.rint(np.geomspace(1, 1e7, 300)))


def slowest_of(num_workers: Numbers) -> tuple[Numbers, Numbers]:
    """Mean and variance of the largest of so many standard normal numbers.

    A worker's time has the mean m and the standard deviation s; the slowest of n then takes
    m + s * mean(n) on average. The density of the largest is n φ(x) Φ(x)ⁿ⁻¹ (David & Nagaraja,
    "Order Statistics", 2003).
    """
    if isinstance(num_workers, np.ndarray):
        means, variances = _on_grid()
        place, grid = np.log(num_workers), np.log(_GRID)
        return np.interp(place, grid, means), np.interp(place, grid, variances)
    return _slowest_of(int(num_workers))


@lru_cache
def _on_grid() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    means, variances = np.array([_slowest_of(int(count)) for count in _GRID]).T
    return means, variances


@lru_cache(maxsize=4096)
def _slowest_of(num_workers: int) -> tuple[float, float]:
    if num_workers == 1:
        return 0.0, 1.0
    from scipy.special import log_ndtr

    x = np.linspace(-9.0, 9.0, 4001)
    log_density = np.log(num_workers) - x**2 / 2 - np.log(2 * np.pi) / 2
    density = np.exp(log_density + (num_workers - 1) * log_ndtr(x)) * (x[1] - x[0])
    mean = float((density * x).sum())
    return mean, float((density * (x - mean) ** 2).sum())
