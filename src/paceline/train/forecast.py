"""What a run was expected to take, to be held against what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.train.stats import Stats

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is expected of a run, for its loggers; give what you know.

    ``prediction.forecast()`` makes one of a prediction.
    """

    step_s: float | None = None
    """Seconds per step, as predicted."""
    total_steps: int | None = None
    """Optimizer steps of the whole run."""
    price_per_hour: float | None = None
    """US dollars for the whole cluster for one hour: ``load_cluster(...).price_per_hour``."""

    def __post_init__(self) -> None:
        for name in ("step_s", "total_steps", "price_per_hour"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"Forecast: {name}={value} must not be less than 0")

    def settings(self) -> dict[str, float]:
        """What is known before the first step."""
        known = {
            "predicted_step_s": self.step_s,
            "total_steps": self.total_steps,
            "price_per_hour": self.price_per_hour,
            "predicted_dollars": self._predicted_dollars(),
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    def numbers(self, step: int, step_s: float, stats: Stats) -> dict[str, float]:
        """What is expected beside what was measured.

        Args:
            step: How many steps of the whole run were taken, also before it was resumed.
            step_s: Seconds per step, of late.
            stats: Of the run since it was attached.

        """
        found = {}
        if self.step_s:
            found["predicted_step_s"] = self.step_s
            found["step_over_predicted"] = step_s / self.step_s
        if self.price_per_hour is not None:
            found["dollars_spent"] = self._dollars(stats.total_s)
            if self.total_steps is not None and stats.num_steps:
                mean_s = stats.total_s / stats.num_steps
                num_left = max(0, self.total_steps - step)
                found["dollars_expected"] = self._dollars(stats.total_s + num_left * mean_s)
        return found

    def _predicted_dollars(self) -> float | None:
        if self.step_s is None or self.total_steps is None or self.price_per_hour is None:
            return None
        return self._dollars(self.step_s * self.total_steps)

    def _dollars(self, seconds: float) -> float:
        assert self.price_per_hour is not None
        return seconds / _SECONDS_PER_HOUR * self.price_per_hour
