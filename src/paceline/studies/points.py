"""The points of a study: which values of the axes are timed, for which strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from paceline.studies.axes import Axes, AxisName

Scaling = Literal["weak", "strong"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Points:
    """One entry per point in every array."""

    sweep: Array
    """The axis along which the point lies, two joined by ``*``, or ``base``, where all meet."""
    scaling: Array
    """Whether the batch per worker or the global batch is constant along the axis."""
    strategy: Array
    batch: Array
    """Per worker."""
    arithmetic: Array
    memory_bandwidth: Array
    link: Array
    workers: Array

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, places: Array) -> Points:
        """Some of the points."""
        return Points(**{each.name: getattr(self, each.name)[places] for each in fields(self)})


def make_points(
    axes: Axes,
    base: Mapping[str, float],
    *,
    strategies: Sequence[str],
    maps: Sequence[tuple[AxisName, AxisName]],
    scalings: Sequence[Scaling],
) -> Points:
    """Each axis alone and each map, for each strategy; the other axes have the base's values."""
    rows = [
        row
        for strategy in strategies
        for row in (
            *_sweeps(axes, base, strategy, scalings),
            *_maps(axes, base, strategy, maps),
        )
    ]
    columns: dict[str, Any] = {
        name: np.array([row[name] for row in rows])
        for name in (each.name for each in fields(Points))
    }
    return Points(**columns)


def _sweeps(
    axes: Axes, base: Mapping[str, float], strategy: str, scalings: Sequence[Scaling]
) -> Iterator[dict[str, Any]]:
    yield _row("base", "weak", strategy, base)
    names: tuple[AxisName, ...] = ("batch", "arithmetic", "memory_bandwidth", "link")
    for name in names:
        for value in axes.values(name):
            yield _row(name, "weak", strategy, {**base, name: value})
    if "weak" in scalings:
        for workers in axes.workers:
            yield _row("workers", "weak", strategy, {**base, "workers": workers})
    if "strong" in scalings:
        global_batch = base["batch"] * base["workers"]
        for workers in axes.workers:
            # A share below one sample is no share; one that is no whole number would need two
            # sizes of batches at once.
            if global_batch % workers == 0:
                shared = {"workers": workers, "batch": global_batch / workers}
                yield _row("workers", "strong", strategy, {**base, **shared})


def _maps(
    axes: Axes,
    base: Mapping[str, float],
    strategy: str,
    maps: Sequence[tuple[AxisName, AxisName]],
) -> Iterator[dict[str, Any]]:
    for first, second in maps:
        for one, other in product(axes.values(first), axes.values(second)):
            yield _row(f"{first}*{second}", "weak", strategy, {**base, first: one, second: other})


def _row(
    sweep: str, scaling: Scaling, strategy: str, values: Mapping[str, float]
) -> dict[str, Any]:
    whole = {"batch": round(values["batch"]), "workers": round(values["workers"])}
    return {"sweep": sweep, "scaling": scaling, "strategy": strategy, **values, **whole}
