"""What a prediction says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paceline.rehearse.run import Run
from paceline.train.forecast import Forecast

Bottleneck = Literal["arithmetic", "memory bandwidth", "host", "communication"]

# By how much two strategies must differ for a prediction to say which one is faster: the ratio of
# their steps was off by 3 to 5 % on average in the lab (docs/evidence/steps.md).
RESOLUTION = 0.05


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One training step: how long, why, and how sure that is.

    ``step_s`` is the sum of its parts: ``compute_s`` (the device works),
    ``exposed_communication_s`` (it waits for other workers) and ``host_s`` (it waits for Python).
    """

    model: str
    device: str
    nodes: int
    workers: int
    batch: int
    """Per worker."""
    precision: str
    strategy: str
    step_s: float
    compute_s: float
    exposed_communication_s: float
    host_s: float
    host_issue_s: float
    """What the host needs to issue a step, hidden behind the device or not."""
    throughput_per_s: float
    """Samples a second, of all workers."""
    scaling_efficiency: float
    memory_bytes: int
    memory_limit_bytes: int
    fits: bool
    bottleneck: Bottleneck
    method: Mapping[str, float]
    """Share of the compute time by how its kernels were timed: table, mlp, roofline."""
    extrapolated: bool
    """Whether the kernels' efficiency was learnt on another device."""
    uncertainty: float
    """One standard deviation of step_s, relative."""
    shares: Literal["equal", "balanced"] = "equal"
    """Whether all workers have the same batch, or batches in proportion to their speed."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Per worker of each kind of node, where shares are balanced."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds a step by the strategy's phase, where it has phases; step_s is cycling's."""
    run: Run | None = None
    """The whole run, where its number of samples was given."""
    compiled_ratio: float | None = None
    """One worker's compiled step over its eager step, where a compiled one was asked for."""
    warnings: tuple[str, ...] = ()
    """What may be wrong with it."""
    notes: tuple[str, ...] = ()
    """What helps: where the host is the limit."""

    @property
    def range_s(self) -> tuple[float, float]:
        """Between what and what the step is in two of three cases: one standard deviation."""
        return (
            self.step_s * max(0.0, 1 - self.uncertainty),
            self.step_s * (1 + self.uncertainty),
        )

    def forecast(self, *, price_per_hour: float | None = None) -> Forecast:
        """What a run is expected to take, for the loggers of :func:`paceline.attach`.

        Args:
            price_per_hour: US dollars for the whole cluster; by default the price that the cluster
                of the prediction has, where the number of samples was given.

        """
        if self.run is None:
            return Forecast(step_s=self.step_s, price_per_hour=price_per_hour)
        if price_per_hour is None and self.run.dollars is not None:
            price_per_hour = self.run.dollars / self.run.seconds * 3600
        return Forecast(
            step_s=self.run.mean_step_s,
            total_steps=self.run.num_steps,
            price_per_hour=price_per_hour,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        own = {"warnings": list(self.warnings), "range_s": list(self.range_s)}
        found = asdict(self) | own | {"notes": list(self.notes)}
        # Only where it was asked for, and where there is something to say.
        for name in ("run", "compiled_ratio", "notes"):
            if not found[name]:
                del found[name]
        return found


def fastest(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those that may be the fastest, as far as predictions can tell them apart; quickest first."""
    in_order = sorted(predictions, key=lambda each: each.step_s)
    return [each for each in in_order if each.step_s <= in_order[0].step_s * (1 + RESOLUTION)]
