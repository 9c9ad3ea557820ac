"""Fits the few constants of a cost formula to measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from paceline.collectives.topology import Numbers, Route

Array = npt.NDArray[np.float64]

# An efficiency has to earn its place: without it the fit must be worse by this factor.
_WORTH_A_CONSTANT = 1.2
# Noise can ask for a time that grows with √n alone, which is no link: bandwidth and half_bytes
# would then rise together without end.
_MOST_HALF_BYTES = 2.0**22
# Times that barely grow with size, if only from noise, would ask for an infinite bandwidth. A link
# is assumed to be at most this many times as fast as its best time: a smaller share is not visible.
_MOST_OVER_APPARENT = 20.0


def mean_error(
    predicted_s: Numbers, measured_s: Numbers, weights: Sequence[float] | None = None
) -> float:
    """The mean of |predicted / measured − 1|, each counted by its weight."""
    errors = np.abs(np.asarray(predicted_s) / measured_s - 1)
    return float(np.average(errors, weights=weights))


def fit_route(
    predict: Callable[[Route], Numbers],
    times_s: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
) -> Route:
    """The route for which ``predict`` comes closest to the measured times.

    ``half_bytes`` stays 0 where latency and bandwidth alone explain the times about as well.

    Args:
        predict: The predicted times over a route, one for each measured time.
        times_s: The measured times.
        weights: How much each time counts; by default all alike.
    """

    def route(constants: Array) -> Route:
        latency_s, bandwidth_bytes_per_s, *half_bytes = (float(value) for value in constants)
        return Route(
            latency_s=latency_s,
            bandwidth_bytes_per_s=min(bandwidth_bytes_per_s, _MOST_OVER_APPARENT * apparent),
            half_bytes=min(half_bytes[0], _MOST_HALF_BYTES) if half_bytes else 0.0,
        )

    def predict_from(constants: Array) -> Numbers:
        return predict(route(constants))

    measured_s = np.asarray(times_s)
    # Where to start: the formulas are linear in latency and in seconds per byte.
    unit_s = np.asarray(predict(Route(latency_s=0.0, bandwidth_bytes_per_s=1.0)))
    apparent = float(np.max(unit_s / measured_s))
    start = (min(times_s) / 4, apparent)
    simple = fit_constants(predict_from, start, measured_s, weights=weights)
    full = fit_constants(predict_from, (*simple, 1e4), measured_s, weights=weights)
    error, least = (
        mean_error(predict_from(constants), measured_s, weights) for constants in (simple, full)
    )
    return route(full if error > _WORTH_A_CONSTANT * least else simple)


def fit_constants(
    predict: Callable[[Array], Numbers],
    start: Sequence[float],
    measured_s: Array,
    *,
    weights: Sequence[float] | None = None,
) -> Array:
    """Positive constants with the least mean error.

    Args:
        predict: The predicted times for given constants.
        start: Where the search starts.
        measured_s: The measured times.
        weights: How much each time counts; by default all alike.
    """

    # Here and not above: scipy's optimisers are slow to import.
    from scipy.optimize import minimize

    def cost(logarithms: Array) -> float:
        return mean_error(predict(np.exp(logarithms)), measured_s, weights)

    best = np.log(np.asarray(start, dtype=np.float64))
    # A simplex can collapse before it is there; a fresh one goes on.
    for size in (1.0, 0.3, 0.1):
        simplex = np.vstack([best, best + size * np.eye(len(best))])
        options = {"initial_simplex": simplex, "fatol": 1e-9, "xatol": np.inf}
        best = minimize(cost, best, method="Nelder-Mead", options=options).x
    return np.exp(best)
