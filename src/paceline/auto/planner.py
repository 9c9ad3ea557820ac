"""The first worker's plan: from the agreed figures to a decision that all workers share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.auto.candidates import Candidate
from paceline.auto.decision import Decision, decide, describe
from paceline.auto.figures import Computing, Figures
from paceline.auto.forecast import Forecast
from paceline.cluster.units import format_bandwidth
from paceline.measure.links import LinkTimes, fit_links
from paceline.rehearse.prediction import RESOLUTION

_MARGIN = 2 * RESOLUTION
"""Of predictions from the figures of a few steps."""


class Planner:
    """Holds what was measured, and decides by it.

    Predictions are corrected by what strategies were measured to take. A strategy that was slower
    than predicted is assumed to be so with its other options too, by as much as these exchange: the
    same seconds per byte. One that was faster is assumed to be so by the same share.
    """

    def __init__(self, candidates: Sequence[Candidate], *, least_gain: float) -> None:
        self._candidates = list(candidates)
        self._least_gain = least_gain
        self.figures: Figures | None = None
        self.measured: dict[Candidate, list[float]] = {}
        """How many times as long as predicted a candidate took, each time."""
        self._predicted_s: dict[Candidate, float] = {}

    def take_figures(
        self, computing: Computing, sync_s: float, links: LinkTimes, forecast: Forecast
    ) -> None:
        """The first steps were measured."""
        inside, between = _links(links)
        figures = Figures(computing=computing, inside=inside, between=between)
        self._renew(forecast.fit_interference(figures, sync_s))
        self.correct(Candidate("sync"), [sync_s], forecast)

    def take_links(self, links: LinkTimes) -> None:
        """The links were measured again."""
        assert self.figures is not None
        inside, between = _links(links)
        self._renew(replace(self.figures, inside=inside, between=between))

    def _renew(self, figures: Figures) -> None:
        self.figures = figures
        self.measured = {}
        self._predicted_s = {}

    def correct(self, current: Candidate, steps_s: Sequence[float], forecast: Forecast) -> None:
        """A strategy's steps were measured."""
        predicted_s = self._predict(current, forecast)
        ratios = [step_s / predicted_s for step_s in steps_s]
        self.measured[current] = [*self.measured.get(current, []), *ratios]

    def decide(self, forecast: Forecast, *, current: Candidate | None = None) -> Decision:
        """What should train from now on; with ``current``, that unless another is worth it."""
        assert self.figures is not None

        decision = decide(
            self._candidates,
            lambda each: self._hoped_s(each, forecast),
            alone_s=self.figures.computing.step_s,
            least_gain=self._least_gain,
            current=current,
        )
        expected_s = {each: self._expected_s(each, forecast) for each in self._predicted_s}
        rate = format_bandwidth(self.figures.between.bandwidth_bytes_per_s, bits=True)
        why = describe(decision.chosen, expected_s, self.figures.computing.step_s)
        return replace(
            decision,
            expected_s=expected_s[decision.chosen],
            reason=f"{why}; nodes are linked at {rate}",
        )

    def _expected_s(self, candidate: Candidate, forecast: Forecast) -> float:
        predicted_s = self._predict(candidate, forecast)
        if candidate in self.measured:
            return predicted_s * statistics.median(self.measured[candidate])
        alike = [each for each in self.measured if each.name == candidate.name]
        if not alike:
            return predicted_s
        return statistics.median(self._expected_from(each, candidate, forecast) for each in alike)

    def _expected_from(self, known: Candidate, candidate: Candidate, forecast: Forecast) -> float:
        """Seconds per step of a candidate, by those of the same strategy with other options."""
        predicted_s, ratio = (
            self._predict(candidate, forecast),
            statistics.median(self.measured[known]),
        )
        if ratio <= 1.0:
            return predicted_s * ratio
        excess_s = (ratio - 1.0) * self._predict(known, forecast)
        return predicted_s + excess_s * candidate.load / known.load

    def _hoped_s(self, candidate: Candidate, forecast: Forecast) -> float:
        """What a strategy takes if it was measured, else at best: so that it is tried.

        Predictions that are closer than this cannot say which one is faster; measuring can.
        """
        is_tried = any(each.name == candidate.name for each in self.measured)
        return self._expected_s(candidate, forecast) * (1.0 if is_tried else 1.0 - _MARGIN)

    def _predict(self, candidate: Candidate, forecast: Forecast) -> float:
        assert self.figures is not None
        if candidate not in self._predicted_s:
            self._predicted_s[candidate] = forecast.step_s(candidate, self.figures)
        return self._predicted_s[candidate]

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        figures = None if self.figures is None else self.figures.to_dict()
        measured = [[each.to_dict(), list(ratios)] for each, ratios in self.measured.items()]
        return {"figures": figures, "measured": measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What :meth:`state_dict` returned."""
        figures = state["figures"]
        self.figures = None if figures is None else Figures.from_dict(figures)
        self.measured = {
            Candidate.from_dict(each): list(ratios) for each, ratios in state["measured"]
        }
        self._predicted_s = {}


def _links(times: LinkTimes) -> tuple[Any, Any]:
    by_place = {each.place: each.link for each in fit_links(times)}
    return by_place.get("inside"), by_place["between"]
