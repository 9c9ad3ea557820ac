"""The report of a race: what was predicted and what was measured, from plain figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.studies.charts.race import accuracy_section, bytes_section, measured_section
from paceline.studies.page import Page, TextTable
from paceline.studies.racer import Racer
from paceline.studies.words import duration, size, with_range


@dataclass(frozen=True, kw_only=True)
class RaceFigures:
    """What a race's report shows."""

    title: str
    """What raced where: ``small-cnn on digits, 2x2 workers, 100 Mbit/s``."""
    racers: Sequence[Racer]
    target: float
    """The accuracy whose time was taken."""
    setting: str = ""
    """One sentence on what they ran on."""
    warnings: Sequence[str] = ()


def race_page(race: RaceFigures) -> Page:
    """A race in words and charts: accuracy over time, predicted against measured, bytes.

    Args:
        race: Its figures.
    """
    sections = (
        accuracy_section(race.racers, race.target),
        measured_section(race.racers),
        bytes_section(race.racers),
    )
    return Page(
        title=f"{race.title}: the race",
        summary=[text for text in (race.setting, *_summary(race)) if text],
        overview=_overview(race),
        warnings=race.warnings,
        sections=[section for section in sections if section is not None],
    )


def _summary(race: RaceFigures) -> list[str]:
    return [_winner(race), _accuracy_of_predictions(race)]


def _winner(race: RaceFigures) -> str:
    entered = [each for each in race.racers if not each.is_bound]
    there = [each for each in entered if each.time_to_target_s is not None]
    if not there:
        return f"Nobody reached {race.target:.0%} accuracy."
    times = {each.name: each.time_to_target_s or 0.0 for each in there}
    first, *others = sorted(times, key=lambda name: times[name])
    text = f"{first} reached {race.target:.0%} accuracy first, after {duration(times[first])}"
    if not others:
        return f"{text}."
    last = others[-1]
    longer = times[last] / times[first]
    return f"{text}; {last} took {duration(times[last])}, {longer:.1f} times as long."


def _accuracy_of_predictions(race: RaceFigures) -> str:
    errors = {
        each.name: each.predicted_step_s / each.step_s - 1
        for each in race.racers
        if each.predicted_step_s is not None
    }
    if not errors:
        return ""
    worst = max(errors, key=lambda name: abs(errors[name]))
    mean = sum(map(abs, errors.values())) / len(errors)
    return (
        f"The mean error of the predicted step times is {mean:.0%}, the largest "
        f"{abs(errors[worst]):.0%} ({worst})."
    )


def _overview(race: RaceFigures) -> TextTable:
    return TextTable(
        header=(
            "strategy",
            "measured step",
            "predicted step",
            f"time to {race.target:.0%}",
            "accuracy",
            "waiting",
            "between nodes",
        ),
        rows=[
            (
                each.name,
                duration(each.step_s),
                _predicted(each),
                "not reached" if each.time_to_target_s is None else duration(each.time_to_target_s),
                f"{each.accuracies[-1]:.1%}" if each.accuracies else "–",
                "–" if each.waiting_share is None else f"{each.waiting_share:.0%}",
                "not counted"
                if each.bytes_between_nodes is None
                else size(each.bytes_between_nodes),
            )
            for each in race.racers
        ],
    )


def _predicted(racer: Racer) -> str:
    if racer.predicted_step_s is None:
        return "–"
    if racer.predicted_range_s is None:
        return duration(racer.predicted_step_s)
    return with_range(racer.predicted_step_s, *racer.predicted_range_s)
