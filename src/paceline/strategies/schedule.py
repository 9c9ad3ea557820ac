"""What a strategy says about its course: phases, their lengths, and what it wants to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run in which a strategy does the same again and again."""

    name: str
    num_steps: int | None = None
    """None stands for all the steps that are left."""
    period: int | None = None
    """Steps after which it repeats itself; None if the strategy does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The phases of a run, in order."""

    phases: tuple[Phase, ...] = (Phase("all"),)
    main: str | None = None
    """The phase that most of a run is in; by default the last one."""
    wants_length: bool = False
    """Whether the strategy wants to be told the run's length
    (:meth:`~paceline.Strategy.set_run_length`)."""

    @property
    def longest_period(self) -> int:
        """Steps after which every phase has repeated itself, as far as the strategy says."""
        return max((phase.period or 1 for phase in self.phases), default=1)

    def counts(self, num_steps: int) -> dict[str, int]:
        """The steps of each phase in a run of so many steps."""
        known = sum(phase.num_steps for phase in self.phases if phase.num_steps is not None)
        return {
            phase.name: max(0, num_steps - known)
            if phase.num_steps is None
            else min(phase.num_steps, num_steps)
            for phase in self.phases
        }
