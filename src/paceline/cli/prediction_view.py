"""How a prediction looks on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.cli import frame
from paceline.cluster.units import format_clock

if TYPE_CHECKING:
    from rich.text import Text

    from paceline.rehearse import Prediction
    from paceline.rehearse.run import Run

# Glyphs that differ, since not every terminal has colours.
_PARTS = (("compute", "█", "green"), ("communication", "░", "yellow"), ("host", "▒", "red"))


def show_one(prediction: Prediction) -> None:
    """Print a prediction: its figures, where the time goes, its notes."""
    from rich.table import Table

    from paceline.cluster.units import format_duration, format_size

    screen = frame.console()
    low, high = prediction.range_s
    table = Table(show_header=False, box=None, title=_title(prediction), title_justify="left")
    table.add_row(
        "step",
        f"{format_duration(prediction.step_s)}  "
        f"({format_duration(low)} to {format_duration(high)})",
    )
    if prediction.compiled_ratio is not None:
        table.add_row("compiled", f"{prediction.compiled_ratio:.2f} of the eager step")
    table.add_row("throughput", f"{prediction.throughput_per_s:,.0f} samples/s")
    if prediction.workers > 1:
        table.add_row("strategy", prediction.strategy)
        table.add_row("scaling efficiency", f"{prediction.scaling_efficiency:.0%}")
    table.add_row("limited by", prediction.bottleneck)
    verdict = "fits" if prediction.fits else "does not fit"
    table.add_row(
        "memory",
        f"{format_size(prediction.memory_bytes)} of {format_size(prediction.memory_limit_bytes)}: "
        f"{verdict}",
    )
    table.add_row("kernels timed by", _methods(prediction))
    if prediction.run is not None:
        table.add_row("whole run", _run(prediction.run))
    screen.print(table)
    screen.print(_bar(prediction, width=60))
    for phase, seconds in prediction.phases_s.items():
        if phase != "all":
            screen.print(f"{phase}: {format_duration(seconds)} per step")
    screen.print(_legend())
    for note in prediction.notes:
        screen.print(note, highlight=False)


def _run(run: Run) -> str:
    parts = [
        f"{run.num_steps:,} steps",
        format_clock(run.seconds),
        f"{run.device_hours:,.1f} device-hours",
        "price not known" if run.dollars is None else f"{run.dollars:,.2f} US dollars",
    ]
    return ", ".join(parts)


def _legend() -> Text:
    from rich.text import Text

    return Text("  ").join(
        Text.assemble((glyph, colour), f" {name}") for name, glyph, colour in _PARTS
    )


def show_all(predictions: list[Prediction]) -> None:
    """Print the predictions of several strategies side by side."""
    from rich.table import Column, Table

    from paceline.cluster.units import format_duration

    screen = frame.console()
    longest_s = max(prediction.step_s for prediction in predictions)
    with_runs = predictions[0].run is not None
    runs = ("whole run", "US dollars") if with_runs else ()
    name = Column("strategy", no_wrap=True)
    table = Table(name, "step", "efficiency", "samples/s", *runs, "where the time goes")
    # What the other columns leave of the screen.
    longest = max(8, min(40, screen.width - (86 if with_runs else 60)))
    for prediction in sorted(predictions, key=lambda each: each.step_s):
        table.add_row(
            prediction.strategy,
            format_duration(prediction.step_s),
            f"{prediction.scaling_efficiency:.0%}",
            f"{prediction.throughput_per_s:,.0f}",
            *_run_columns(prediction.run),
            _bar(prediction, width=max(1, round(longest * prediction.step_s / longest_s))),
        )
    table.title = _title(predictions[0])
    screen.print(table)
    screen.print(_legend())


def too_close(predictions: list[Prediction]) -> list[str]:
    """What to say of strategies that a prediction cannot put in order."""
    from paceline.rehearse.prediction import RESOLUTION, fastest

    *others, last = [prediction.strategy for prediction in fastest(predictions)]
    if not others:
        return []
    return [
        f"{', '.join(others)} and {last} are within {RESOLUTION:.0%} of each other: predictions "
        "are not accurate enough to say which one is the fastest."
    ]


def _run_columns(run: Run | None) -> tuple[str, ...]:
    if run is None:
        return ()
    dollars = "-" if run.dollars is None else f"{run.dollars:,.2f}"
    return format_clock(run.seconds), dollars


def _title(prediction: Prediction) -> str:
    where = prediction.device
    if prediction.workers > 1:
        nodes = "1 node" if prediction.nodes == 1 else f"{prediction.nodes} nodes"
        where = f"{prediction.workers} x {prediction.device} on {nodes}"
    return f"{prediction.model}, batch {prediction.batch}, {prediction.precision}, {where}"


def _methods(prediction: Prediction) -> str:
    shares = [f"{name} {share:.0%}" for name, share in prediction.method.items() if share >= 0.005]
    return ", ".join(shares) + (", carried to this device" if prediction.extrapolated else "")


def _bar(prediction: Prediction, *, width: int) -> Text:
    """The step as one bar: compute, exposed communication, host."""
    from rich.text import Text

    seconds = (prediction.compute_s, prediction.exposed_communication_s, prediction.host_s)
    bar = Text()
    for part_s, (_, glyph, colour) in zip(seconds, _PARTS, strict=True):
        bar.append(glyph * round(width * max(part_s, 0.0) / prediction.step_s), style=colour)
    return bar
