"""DASO: distributed, asynchronous and selective optimisation (Coquelin et al. 2021)."""

from __future__ import annotations

from typing import Any, Literal

from paceline.cluster.record import Count, CountOrZero, NotNegative, Positive, Share
from paceline.strategies.buffers import settle_buffers
from paceline.strategies.periodic import Periodic, Weighting, check_delay
from paceline.strategies.plateau import Plateau
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.wire import WireName
from paceline.teams import Workers

PhaseName = Literal["warm-up", "cycling", "cool-down"]

_PHASE_STEPS = 4
"""The length of warm-up and cool-down, where none is given."""


class Daso(Periodic):
    """Node networks synchronise every step; the global network rarely, and without blocking.

    Warm-up and cool-down exchange at every step, blocking. In between, an exchange starts every B
    steps and is merged W steps later. When the reported metric goes flat, B and W are halved; when
    it goes flat at B = 1, they return to the maximum. Lengths of phases are given in steps, or in
    epochs together with ``steps_per_epoch``.

    Args:
        period: B at first: steps between starts of exchanges.
        delay: W at first: steps from a start to its merge.
        max_period: B after a plateau at B = 1.
        merge: How a result that is some steps old is merged: "stale" or "corrected".
        late: An exchange that has not arrived after W steps: "continue" trains on and merges it
            when it has (at the latest when the next one starts), "wait" waits for it.
        threshold: The relative improvement that ends a plateau.
        patience: Reports without improvement that are no plateau yet.
        warmup_steps: Blocking steps at first; by default 4.
        cooldown_steps: Blocking steps at the end; by default 4, at least 1.
        total_steps: The length of the run, if it is known.
        warmup_epochs: Blocking epochs at first.
        cooldown_epochs: Blocking epochs at the end.
        total_epochs: The length of the run in epochs.
        steps_per_epoch: Needed for lengths in epochs.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "hierarchical, asynchronous exchanges at a rate that adapts to the loss"

    def __init__(
        self,
        *,
        period: Count = 4,
        delay: CountOrZero = 1,
        max_period: Count = 8,
        merge: Literal["stale", "corrected"] = "corrected",
        late: Literal["continue", "wait"] = "continue",
        threshold: Share = 0.05,
        patience: CountOrZero = 2,
        warmup_steps: CountOrZero | None = None,
        cooldown_steps: CountOrZero | None = None,
        total_steps: Count | None = None,
        warmup_epochs: NotNegative | None = None,
        cooldown_epochs: NotNegative | None = None,
        total_epochs: Positive | None = None,
        steps_per_epoch: Count | None = None,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        check_delay(delay, period)
        self.period = period
        self.delay = delay
        self.merge_rule = merge
        self.late = late
        self._max_period = max_period
        self._has_delay = delay > 0
        self._threshold = threshold
        self._patience = patience
        warmup = _in_steps("warmup", warmup_steps, warmup_epochs, steps_per_epoch)
        cooldown = _in_steps("cooldown", cooldown_steps, cooldown_epochs, steps_per_epoch)
        self._warmup = _PHASE_STEPS if warmup is None else warmup
        self._cooldown = _PHASE_STEPS if cooldown is None else cooldown
        self._total = _in_steps("total", total_steps, total_epochs, steps_per_epoch)

    def start(self, replica: Replica, workers: Workers) -> None:
        """Nothing is known about the metric yet."""
        super().start(replica, workers)
        self._plateau = Plateau(threshold=self._threshold, patience=self._patience)

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
            self.period = self._max_period
            self.delay = max(1, self.period // 4) if self._has_delay else 0

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
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._load_rates(state)

    def load_averaged(self, state: dict[str, Any]) -> None:
        """B, W and what is known about the metric hold on other nodes too."""
        super().load_averaged(state)
        self._load_rates(state)

    def _load_rates(self, state: dict[str, Any]) -> None:
        self.period = state["period"]
        self.delay = state["delay"]
        self._plateau.load_state_dict(state["plateau"])


def _in_steps(
    name: str, steps: int | None, epochs: float | None, steps_per_epoch: int | None
) -> int | None:
    """A length in steps, however it was given."""
    if epochs is None:
        return steps
    if steps is not None:
        raise ValueError(f"give {name}_steps or {name}_epochs, not both")
    if steps_per_epoch is None:
        raise ValueError(f"{name}_epochs needs steps_per_epoch")
    return round(epochs * steps_per_epoch)
