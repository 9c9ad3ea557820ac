"""What was measured in the running job: the same figures on all workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from paceline.cluster import Link


@dataclass(frozen=True, kw_only=True)
class Computing:
    """One step of the slowest node without any exchange, in seconds."""

    forward_s: float
    """From the end of the step before until the first bucket of gradients is complete."""
    buckets_s: tuple[float, ...]
    """From each bucket of gradients to the next; the first is 0."""
    rest_s: float
    """From the last bucket to the end of the backward pass."""
    optimizer_s: float
    """From the exchanged gradients to the end of the optimizer's step."""
    jitter: float
    """How much a worker's steps vary: standard deviation over mean."""
    copied_bytes_per_s: float
    """Bytes read and written while all workers copy: what packing and merging run at."""

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.forward_s + sum(self.buckets_s) + self.rest_s + self.optimizer_s


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the cost model is asked with."""

    computing: Computing
    inside: Link | None
    """Between the workers of a node; None where nodes have one."""
    between: Link
    interference: float = 0.0
    """The share of its speed that computing loses while all workers exchange gradients."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "computing": asdict(self.computing),
            "inside": None if self.inside is None else self.inside.model_dump(),
            "between": self.between.model_dump(),
            "interference": self.interference,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` made."""
        computing, inside = values["computing"], values["inside"]
        return cls(
            computing=Computing(**{**computing, "buckets_s": tuple(computing["buckets_s"])}),
            inside=None if inside is None else Link(**inside),
            between=Link(**values["between"]),
            interference=values["interference"],
        )
