"""DASO: distributed, asynchronous and selective optimisation (Coquelin et al. 2021)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from paceline.strategies.buffers import settle_buffers
from paceline.strategies.periodic import Periodic, PeriodicOptions
from paceline.strategies.plateau import Plateau
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Options
from paceline.teams import Workers

PhaseName = Literal["warm-up", "cycling", "cool-down"]


class DasoOptions(PeriodicOptions):
    """Options of DASO. Phases are given in steps, or in epochs with ``steps_per_epoch``."""

    period: int = Field(4, ge=1, description="B at first: steps between starts of exchanges.")
    delay: int = Field(1, ge=0, description="W at first: steps from a start to its merge.")
    max_period: int = Field(8, ge=1, description="B after a plateau at B = 1.")
    merge: Literal["stale", "corrected"] = Field(
        "corrected", description="How a result that is some steps old is taken over."
    )
    late: Literal["continue", "wait"] = Field(
        "continue",
        description="An exchange that has not arrived after W steps: train on and merge it "
        "when it has (at the latest when the next one starts), or wait.",
    )
    threshold: float = Field(
        0.05, ge=0, lt=1, description="Relative improvement that ends a plateau."
    )
    patience: int = Field(2, ge=0, description="Reports without improvement that are no plateau.")
    warmup_steps: int | None = Field(None, ge=0, description="Blocking steps at first (4).")
    cooldown_steps: int | None = Field(
        None, ge=0, description="Blocking last steps (4; 1 at least)."
    )
    total_steps: int | None = Field(None, ge=1, description="Length of the run, if known.")
    warmup_epochs: float | None = Field(None, ge=0, description="Blocking epochs at first.")
    cooldown_epochs: float | None = Field(None, ge=0, description="Blocking epochs at last.")
    total_epochs: float | None = Field(None, gt=0, description="Length of the run in epochs.")
    steps_per_epoch: int | None = Field(None, ge=1, description="Needed for epochs.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delay > self.period:
            raise ValueError(f"delay={self.delay} must not be longer than period={self.period}")
        for name in ("warmup", "cooldown", "total"):
            in_epochs = getattr(self, f"{name}_epochs")
            if in_epochs is not None and getattr(self, f"{name}_steps") is not None:
                raise ValueError(f"give {name}_steps or {name}_epochs, not both")
            if in_epochs is not None and self.steps_per_epoch is None:
                raise ValueError(f"{name}_epochs needs steps_per_epoch")
        return self

    def in_steps(self, name: str, default: int | None) -> int | None:
        """A length in steps, however it was given."""
        epochs = getattr(self, f"{name}_epochs")
        if epochs is not None:
            assert self.steps_per_epoch is not None
            in_steps: int = round(epochs * self.steps_per_epoch)
            return in_steps
        steps: int | None = getattr(self, f"{name}_steps")
        return default if steps is None else steps


class Daso(Periodic):
    """Node networks synchronise every step; the global network rarely, and without blocking.

    Warm-up and cool-down exchange at every step, blocking. In between, an exchange starts every B
    steps and is merged W steps later. When the reported metric goes flat, B and W are halved; when
    it goes flat at B = 1, they return to the maximum.
    """

    options_type: ClassVar[type[Options]] = DasoOptions
    options: DasoOptions
    summary = "hierarchical, asynchronous exchanges at a rate that adapts to the loss"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.period = self.options.period
        self.delay = self.options.delay
        self.merge_rule = self.options.merge
        self.late = self.options.late
        self._warmup = self.options.in_steps("warmup", 4) or 0
        self._cooldown = self.options.in_steps("cooldown", 4) or 0
        self._total = self.options.in_steps("total", None)

    def start(self, replica: Replica, workers: Workers) -> None:
        """Nothing is known about the metric yet."""
        super().start(replica, workers)
        self._plateau = Plateau(threshold=self.options.threshold, patience=self.options.patience)

    @property
    def phase(self) -> PhaseName:
        """The phase that the current step belongs to."""
        if self.step <= self._warmup:
            return "warm-up"
        # The last step always blocks, so that a run of known length ends with equal workers.
        if self._total is not None and self.step > self._total - max(1, self._cooldown):
            return "cool-down"
        return "cycling"

    def schedule(self) -> Schedule:
        """Warm-up, cycling, and cool-down where the run's length is known."""
        if self._total is None:
            warm_up = Phase("warm-up", self._warmup, period=1)
            cycling = Phase("cycling", period=self.period)
            return Schedule(phases=(warm_up, cycling), main="cycling", wants_length=True)
        num_first = min(self._warmup, self._total)
        num_last = min(self._total - num_first, max(1, self._cooldown))
        phases = (
            Phase("warm-up", num_first, period=1),
            Phase("cycling", self._total - num_first - num_last, period=self.period),
            Phase("cool-down", num_last, period=1),
        )
        return Schedule(phases=phases, main="cycling")

    def set_run_length(self, num_steps: int) -> None:
        """Cool down at the end of so many steps, unless another length was given."""
        if self._total is None:
            self._total = num_steps

    def after_step(self) -> None:
        """At the last step all workers become equal, if it is known which one that is."""
        super().after_step()
        if self.step == self._total:
            settle_buffers(self.replica, self.workers.world)

    def is_due(self, fragment: int) -> bool:
        """At every step outside the cycling phase; every B steps in it."""
        return self.phase != "cycling" or super().is_due(fragment)

    def current_delay(self) -> int:
        """Blocking outside the cycling phase."""
        return self.delay if self.phase == "cycling" else 0

    def report(self, metric: float) -> None:
        """Change B and W when the metric has gone flat."""
        if not self._plateau.report(metric):
            return
        if self.period > 1:
            self.period //= 2
            self.delay = min(self.period, max(1, self.delay // 2)) if self.delay else 0
        else:
            self.period = self.options.max_period
            self.delay = max(1, self.period // 4) if self.options.delay else 0

    def status(self) -> dict[str, float]:
        """B, W and the phase as a number: 0 warm-up, 1 cycling, 2 cool-down."""
        phases = ("warm-up", "cycling", "cool-down")
        return {**super().status(), "phase": phases.index(self.phase)}

    def state_dict(self) -> dict[str, Any]:
        """Also B, W and what is known about the metric."""
        return {
            **super().state_dict(),
            "period": self.period,
            "delay": self.delay,
            "plateau": self._plateau.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        super().load_state_dict(state)
        self.period = state["period"]
        self.delay = state["delay"]
        self._plateau.load_state_dict(state["plateau"])
