"""When every worker ended every step: what a play finds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.collectives import Numbers
from paceline.rehearse.program import Role
from paceline.rehearse.record import Recording
from paceline.traces.trace import Span


@dataclass(frozen=True, kw_only=True)
class Played:
    """When each role ended each step, and what happened meanwhile."""

    ends_s: npt.NDArray[np.float64]
    """(roles, steps, ...)."""
    late_s: Numbers
    """How long after a program was told that something was over it was; 0 where nobody was told too
    early."""
    spans: tuple[Span, ...] = ()
    readings: tuple[tuple[float, ...], ...] = ()
    """By role: what its program would have read of the clock and heard from teams."""

    @property
    def premature(self) -> npt.NDArray[np.bool_]:
        """Whether a program was told that something was over while it was not."""
        return np.asarray(self.late_s) > 0.0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The times of programs on one cluster, or under many conditions at once."""

    played: Played
    recording: Recording
    roles: tuple[Role, ...]
    lateness: npt.NDArray[np.int_] | None = None
    """Of many conditions: that of the recording which each was settled with."""

    @property
    def steps_s(self) -> Any:
        """Seconds of each recorded step: from the last worker to the last worker."""
        ends = np.asarray(self.played.ends_s).max(axis=0)
        return np.diff(ends, axis=0, prepend=0.0)

    @property
    def phases_s(self) -> dict[str, Numbers]:
        """Mean seconds per step by the strategy's phase; "all" where it names none."""
        steps_s = self.steps_s
        return {
            name: steps_s[list(phase.places[-phase.period :])].mean(axis=0)[()]
            for name, phase in self.recording.phases.items()
        }

    @property
    def step_s(self) -> Numbers:
        """Seconds per step in the phase that most of a run is in."""
        phases = self.phases_s
        last = next(reversed(phases.values()))
        main = self.recording.schedule.main
        return last if main is None else phases.get(main, last)

    def settled_by(self, later: Timeline) -> Timeline:
        """The later times, which are of where these stand on an exchange that had not arrived."""
        premature = self.played.premature
        if np.ndim(premature) == 0:
            return later
        # Of the last worker alone: in another recording other workers may be alike.
        own_s, later_s = (each.played.ends_s.max(axis=0)[None] for each in (self, later))
        ends_s = np.broadcast_to(own_s, np.broadcast_shapes(own_s.shape, premature.shape)).copy()
        ends_s[..., premature] = later_s
        late_s = np.zeros(premature.shape)
        late_s[premature] = later.played.late_s
        lateness = np.zeros(premature.shape, int) if self.lateness is None else self.lateness.copy()
        lateness[premature] = later.recording.assumed.lateness
        played = replace(self.played, ends_s=ends_s, late_s=late_s)
        return replace(self, played=played, lateness=lateness)


@dataclass(frozen=True, kw_only=True)
class Timelines:
    """The times under many conditions, in parts that were played one after another."""

    parts: tuple[Timeline, ...]

    @property
    def steps_s(self) -> Any:
        """Seconds of each recorded step."""
        return _joined([part.steps_s for part in self.parts])

    @property
    def phases_s(self) -> dict[str, Numbers]:
        """Mean seconds per step by the strategy's phase."""
        found = [part.phases_s for part in self.parts]
        return {name: _joined([each[name] for each in found]) for name in found[0]}

    @property
    def step_s(self) -> Numbers:
        """Seconds per step in the phase that most of a run is in."""
        joined: Numbers = _joined([part.step_s for part in self.parts])
        return joined

    @property
    def lateness(self) -> npt.NDArray[np.int_]:
        """Of each condition: that of the recording which it was settled with."""
        return np.concatenate(
            [
                np.zeros(np.size(part.step_s), int) if part.lateness is None else part.lateness
                for part in self.parts
            ]
        )


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
