"""Workers whose times vary: how late the slowest of many is."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.collectives import Numbers
from paceline.rehearse.program import NodeRules
from paceline.rehearse.worker_clock import WorkerClock
from paceline.teams.journal import TeamName

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


def slowest_s(rules: NodeRules, team: TeamName, clock: WorkerClock) -> Numbers:
    """When the slowest comes of all the workers that a role stands for in a team."""
    if not rules.jitter and not rules.node_jitter:
        return clock.ready_s
    in_node, variance = slowest_of(rules.workers)
    of_nodes, _ = slowest_of(rules.nodes)
    own_s = np.sqrt(clock.variance)
    if team == "node":
        return clock.ready_s + own_s * in_node
    if team == "across":
        return clock.ready_s + np.hypot(own_s, np.sqrt(clock.variance_of_node)) * of_nodes
    node_s = np.sqrt(clock.variance_of_node + clock.variance * variance)
    return clock.ready_s + own_s * in_node + node_s * of_nodes


def later_of_two_s(rules: NodeRules, clock: WorkerClock, *, is_outward: bool) -> Numbers:
    """When the later one comes of the two workers of a transfer, who vary by as much."""
    if not rules.jitter and not rules.node_jitter:
        return clock.ready_s
    variance = clock.variance + (clock.variance_of_node if is_outward else 0.0)
    return clock.ready_s + np.sqrt(variance) * slowest_of(2)[0]


def forget_lead(rules: NodeRules, team: TeamName, clock: WorkerClock, waited: Numbers) -> None:
    """Who waited for others is as late as they are."""
    if team == "node":
        _, variance = slowest_of(rules.workers)
        grown = clock.node_variance + clock.variance * variance
        clock.node_variance = np.where(waited, grown, clock.node_variance)
    else:
        clock.node_variance = np.where(waited, 0.0, clock.node_variance)
        clock.node_step_deviation = np.where(waited, 0.0, clock.node_step_deviation)
    clock.own_variance = np.where(waited, 0.0, clock.own_variance)
    clock.step_deviation = np.where(waited, 0.0, clock.step_deviation)
