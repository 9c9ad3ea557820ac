"""The report of two traces laid over each other."""

from __future__ import annotations

from paceline.studies.charts.timeline import span_legend, spans_csv, timeline_figure
from paceline.studies.figures import csv_text, figure, filling, label_axis, linear_axis
from paceline.studies.page import Figure, Page, Panel, Section, TextTable
from paceline.studies.palette import BLUE, GREY, ORANGE, Style
from paceline.studies.trace_comparison import BESIDE, PhaseTimes, TraceComparison
from paceline.studies.words import duration

_STYLES = {"predicted": Style(colour=BLUE), "measured": Style(colour=ORANGE, pattern="/")}
_BAR_PX = 54


def trace_page(found: TraceComparison, *, title: str) -> Page:
    """The comparison in words and charts.

    Args:
        found: The two traces.
        title: What was run.
    """
    return Page(
        title=f"{title}: predicted and measured",
        summary=summary_of(found),
        overview=overview_of(found),
        sections=[_phases_section(found), _overlay_section(found), _steps_section(found)],
    )


def summary_of(found: TraceComparison) -> list[str]:
    """How far apart the two are, and where most.

    Args:
        found: The two traces.
    """
    step, parting = found.step, found.parting
    off = step.predicted_s / step.measured_s - 1
    gap_s = abs(step.difference_s)
    share = "" if gap_s == 0 else f" The steps differ by {duration(gap_s)} in all."
    return [
        f"A step was predicted to take {duration(step.predicted_s)} and took "
        f"{duration(step.measured_s)}: the prediction is "
        f"{abs(off):.1%} too {'high' if off > 0 else 'low'}.",
        f"They part most in {parting.phase}: predicted {duration(parting.predicted_s)}, measured "
        f"{duration(parting.measured_s)} per step.{share}",
        f"Measured: {found.num_steps} steps of {_workers(found.num_workers)}; predicted: one cycle "
        f"of {found.period} {'step' if found.period == 1 else 'steps'}.",
    ]


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count:,} workers"


def overview_of(found: TraceComparison) -> TextTable:
    """One row per phase.

    Args:
        found: The two traces.
    """
    return TextTable(
        header=("per step", "predicted", "measured", "eight of ten measured", "difference"),
        rows=[_row(each) for each in (found.step, *found.phases)],
    )


def _row(each: PhaseTimes) -> tuple[str, ...]:
    sign = "+" if each.difference_s >= 0 else "−"
    share = f" ({each.difference_s / each.measured_s:+.0%})" if each.measured_s else ""
    beside = " (beside)" if each.phase in BESIDE else ""
    return (
        f"{each.phase}{beside}",
        duration(each.predicted_s),
        duration(each.measured_s),
        f"{duration(each.low_s)} to {duration(each.high_s)}",
        f"{sign}{duration(abs(each.difference_s))}{share.replace('-', '−')}",
    )


def _phases_section(found: TraceComparison) -> Section:
    rows = [found.step, *found.phases]
    labels = [each.phase for each in rows]
    traces = []
    for name, style in reversed(_STYLES.items()):  # plotly draws from the bottom
        is_measured = name == "measured"
        trace = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "legendgroup": name,
            "x": [each.measured_s if is_measured else each.predicted_s for each in rows],
            "y": labels,
            "marker": filling(style),
            "hovertemplate": "%{x:.3s}s per step<extra>%{fullData.name}</extra>",
        }
        if is_measured:
            trace["error_x"] = {
                "type": "data",
                "symmetric": False,
                "array": [max(each.high_s - each.measured_s, 0.0) for each in rows],
                "arrayminus": [max(each.measured_s - each.low_s, 0.0) for each in rows],
                "color": GREY,
            }
        traces.append(trace)
    chart = figure(
        traces,
        barmode="group",
        height=100 + _BAR_PX * len(rows),
        xaxis=linear_axis("time per step", tickformat="~s", ticksuffix="s"),
        yaxis=label_axis(labels),
    )
    return Section(
        heading="Where they part",
        how_to_read="Two bars of a phase that differ are where prediction and measurement part; "
        "the thin line holds eight of ten measured steps, and communication and exchange run "
        "beside the phases.",
        views={"": (Panel(title="Time per step, by phase", figure=chart),)},
        csv=csv_text(
            ("phase", "predicted_s", "measured_s", "low_s", "high_s", "difference_s"),
            (
                (e.phase, e.predicted_s, e.measured_s, e.low_s, e.high_s, e.difference_s)
                for e in rows
            ),
        ),
        legend=_STYLES,
        is_filled=True,
    )


def _overlay_section(found: TraceComparison) -> Section:
    spans = [span for own in found.timelines.values() for span in own]
    return Section(
        heading="Laid over each other",
        how_to_read="Both traces of the first worker begin at the left edge of a cycle; what is "
        "longer below than above took longer than predicted.",
        views={"": (Panel(title="One cycle", figure=timeline_figure(found.timelines)),)},
        csv=spans_csv(found.timelines, "trace"),
        legend=span_legend(spans),
        is_filled=True,
    )


def _steps_section(found: TraceComparison) -> Section:
    count = len(found.steps_s["measured"])
    own = found.steps_s["predicted"]
    measured = found.steps_s["measured"]
    repeated = [own[(place - found.offset) % len(own)] for place in range(count)]
    return Section(
        heading="Step by step",
        how_to_read="Each step of the first worker; the predicted cycle is repeated and laid where "
        "it fits the measured steps best.",
        views={"": (Panel(title="Time per step", figure=_steps(repeated, measured)),)},
        csv=csv_text(
            ("step", "predicted_s", "measured_s"),
            ((place, *both) for place, both in enumerate(zip(repeated, measured, strict=True))),
        ),
        legend={
            name: Style(colour=style.colour, dash=dash, symbol=symbol)
            for (name, style), dash, symbol in zip(
                _STYLES.items(), ("solid", "dash"), ("circle", "square"), strict=True
            )
        },
    )


def _steps(predicted: list[float], measured: tuple[float, ...]) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "legendgroup": name,
            "x": list(range(len(measured))),
            "y": list(values),
            "line": {"color": _STYLES[name].colour, "dash": dash},
            "marker": {"symbol": symbol, "size": 7},
            "hovertemplate": "%{y:.3s}s<extra>%{fullData.name}</extra>",
        }
        for name, values, dash, symbol in (
            ("predicted", predicted, "solid", "circle"),
            ("measured", measured, "dash", "square"),
        )
    ]
    return figure(
        traces,
        xaxis={**linear_axis("step"), "rangemode": "normal"},
        yaxis=linear_axis("time per step", tickformat="~s", ticksuffix="s"),
    )
