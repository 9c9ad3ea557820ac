"""What the explorer's page asks: a cluster, a device, a strategy, and where the sliders are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from paceline.studies.axes import AXES, Axes, AxisName


@dataclass(frozen=True, kw_only=True)
class Sliders:
    """The place of each slider on its axis, counted from 0."""

    batch: int
    arithmetic: int
    memory_bandwidth: int
    link: int
    workers: int

    def value(self, axes: Axes, name: AxisName) -> float:
        """What a slider stands at."""
        place: int = getattr(self, name)
        return axes.values(name)[place]

    def fits(self, axes: Axes) -> bool:
        """Whether every slider is on its axis."""
        return all(0 <= getattr(self, name) < len(axes.values(name)) for name in AXES)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One state of the page; without sliders, that of the cluster as it is."""

    cluster: str
    device: str
    """A device's name; empty for the cluster's own."""
    strategy: str
    sliders: Sliders | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Question:
        """The question in an address; ValueError if it is not one."""
        names = [each.name for each in fields(Sliders)]
        places = [query[name] for name in names if name in query]
        if len(places) not in (0, len(names)) or not all(
            place.isdecimal() and len(place) < 6 for place in places
        ):
            raise ValueError("give the place of every slider, as a whole number")
        sliders = Sliders(**dict(zip(names, map(int, places), strict=True))) if places else None
        return cls(
            cluster=query.get("cluster", ""),
            device=query.get("device", ""),
            strategy=query.get("strategy", ""),
            sliders=sliders,
        )
