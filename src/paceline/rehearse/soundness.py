"""Whether the figures of a prediction can be: numbers, and not what overflow left of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec

import numpy as np

from paceline.rehearse.prediction import Prediction

P = ParamSpec("P")

_BEYOND = (
    "the figures of the cluster, its devices or the options are too large or too small to compute "
    "with: look for a unit or an exponent that was not meant"
)


def refusing_nonsense(predict: Callable[P, Prediction]) -> Callable[P, Prediction]:
    """A prediction that raises ValueError where its figures would be infinite or no numbers."""

    @functools.wraps(predict)
    def checked(*arguments: P.args, **named: P.kwargs) -> Prediction:
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                found = predict(*arguments, **named)
        except ArithmeticError as problem:  # a division by zero, an overflow
            raise ValueError(f"{_BEYOND} ({problem})") from problem
        figures = (found.step_s, found.compute_s, found.host_s, found.throughput_per_s)
        if not found.step_s > 0 or not all(map(math.isfinite, (*figures, found.uncertainty))):
            raise ValueError(f"{_BEYOND} (a step of {found.step_s:g} s)")
        return found

    return checked
