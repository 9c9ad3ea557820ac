"""How sure a study's figures are: one standard deviation, relative, and the ranges it makes."""

from __future__ import annotations

import numpy as np

from paceline.studies.points import Array


def doubt_of_step(exposed_share: Array, *, kernels: Array | float, links: float) -> Array:
    """Of a step's time.

    Args:
        exposed_share: The share of it that waits for communication.
        kernels: The doubt about what one worker computes.
        links: The doubt about exposed communication.
    """
    return np.asarray(np.hypot((1 - exposed_share) * kernels, exposed_share * links))


def efficiency_range(
    efficiency: Array, exposed_share: Array, *, kernels: Array | float, links: float
) -> tuple[Array, Array]:
    """Between what an efficiency lies.

    An efficiency c / (c + e) hardly depends on an error that all kernels share: only the exposed
    share e / (c + e) of the errors of kernels and links is left in its logarithm.

    Args:
        efficiency: As predicted.
        exposed_share: The share of a step that waits for communication.
        kernels: The doubt about what one worker computes.
        links: The doubt about exposed communication.
    """
    doubt = exposed_share * np.hypot(kernels, links)
    most = np.maximum(efficiency, 1.0)
    return efficiency * np.maximum(1 - doubt, 0.0), np.minimum(efficiency * (1 + doubt), most)
