"""What a worker does when, from the spans of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from paceline.cluster.units import format_duration
from paceline.studies.figures import csv_text, figure, filling, label_axis, linear_axis
from paceline.studies.page import Figure, Panel, Section, chart_text
from paceline.studies.palette import GREY, SPAN_STYLES, Style
from paceline.traces.trace import TRACKS, Span, lanes_of

_MOST_STEPS = 4
_LANE_PX = 38


def timeline_section(traces: Mapping[str, Sequence[Span]]) -> Section | None:
    """A few steps of the first worker, one view per strategy; None where there is no trace."""
    chosen = {label: typical_steps(spans) for label, spans in traces.items() if spans}
    if not chosen:
        return None
    return Section(
        heading="Timeline of a step",
        how_to_read="Time runs from left to right, for the first worker; communication costs "
        "nothing while the lane above computes, and everything where that lane waits.",
        views={
            label: (Panel(title=_title(spans), figure=timeline_figure({"": spans})),)
            for label, spans in chosen.items()
        },
        csv=spans_csv(chosen, "strategy"),
        legend=span_legend([span for spans in chosen.values() for span in spans]),
        is_filled=True,
    )


def typical_steps(spans: Sequence[Span]) -> list[Span]:
    """The first worker's spans in the steps up to the longest one of the later half."""
    own = [span for span in spans if span.worker == spans[0].worker]
    steps = [span for span in own if span.track == "step"]
    later = range(len(steps) // 2, len(steps))
    # The last one of equals: before it, a strategy may still be filling its pipeline.
    last = max(later, key=lambda place: (round(length_s(steps[place]), 6), place), default=0)
    window = steps[max(0, last + 1 - _MOST_STEPS) : last + 1]
    if window and all(length_s(step) > 0.99 * length_s(window[-1]) for step in window):
        window = window[-1:]  # all alike
    return spans_between(own, window[0].start_s, window[-1].end_s) if window else own


def spans_between(spans: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """What falls into a stretch of time, cut to it, with operators joined to phases."""
    cut = [
        Span(
            span.worker,
            span.track,
            span.name,
            max(span.start_s, start_s) - start_s,
            min(span.end_s, end_s) - start_s,
        )
        for span in spans
        if span.start_s < end_s and span.end_s > start_s
    ]
    return _joined(cut)


def length_s(span: Span) -> float:
    """How long something took."""
    return span.end_s - span.start_s


def kind_of(span: Span) -> str:
    """What a span's colour stands for: its phase, or communication."""
    if span.track in ("world", "node", "across"):
        return "communication"
    return span.name.partition(":")[0]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """One span for the operators of a phase that follow each other."""
    found = [span for span in spans if span.track != "compute"]
    computed = sorted((s for s in spans if s.track == "compute"), key=lambda span: span.start_s)
    for kind, group in groupby(computed, key=kind_of):
        own = list(group)
        found.append(Span(own[0].worker, "compute", kind, own[0].start_s, own[-1].end_s))
    return found


def timeline_figure(rows: Mapping[str, Sequence[Span]]) -> Figure:
    """Lanes of spans on one axis of time, lanes of the same track one below the other."""
    by_track: dict[str, list[tuple[str, list[Span]]]] = {track: [] for track in TRACKS}
    for label, own in rows.items():
        for lane, spans in lanes_of(own):
            if spans:
                by_track[spans[0].track].append((f"{label} {lane}".strip(), spans))
    lanes = [lane for same in by_track.values() for lane in same]
    labels = [label for label, _ in lanes]
    by_kind: dict[str, list[tuple[str, Span]]] = {}
    for label, spans in lanes:
        for span in spans:
            by_kind.setdefault(kind_of(span), []).append((label, span))
    traces = [_bars(kind, spans) for kind, spans in by_kind.items()]
    return figure(
        traces,
        height=110 + _LANE_PX * len(lanes),
        barmode="overlay",
        bargap=0.25,
        xaxis=linear_axis("time", tickformat="~s", ticksuffix="s"),
        yaxis=label_axis(labels),
    )


def _bars(kind: str, spans: Sequence[tuple[str, Span]]) -> dict[str, Any]:
    is_step = kind.startswith("step ")
    style = SPAN_STYLES.get(kind)
    return {
        "type": "bar",
        "orientation": "h",
        "name": chart_text(kind),
        "legendgroup": chart_text(kind),
        "showlegend": not is_step,
        "base": [span.start_s for _, span in spans],
        "x": [length_s(span) for _, span in spans],
        "y": [chart_text(label) for label, _ in spans],
        "text": [chart_text(span.name) if is_step else "" for _, span in spans],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": GREY},
        "constraintext": "both",
        "customdata": [
            [chart_text(span.name), format_duration(float(f"{length_s(span):.3g}"))]
            for _, span in spans
        ],
        "marker": filling(style) if style else _PLAIN,
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra>%{y}</extra>",
    }


_PLAIN = {"color": "rgba(128,128,128,0.25)", "line": {"color": GREY, "width": 1}}


def span_legend(spans: Sequence[Span]) -> dict[str, Style]:
    """The styles of what is there."""
    there = {kind_of(span) for span in spans}
    return {kind: style for kind, style in SPAN_STYLES.items() if kind in there}


def spans_csv(rows: Mapping[str, Sequence[Span]], label: str) -> str:
    """The spans as comma-separated text, with the name of their row first."""
    return csv_text(
        (label, "worker", "track", "name", "start_s", "end_s"),
        (
            (name, span.worker, span.track, span.name, span.start_s, span.end_s)
            for name, spans in rows.items()
            for span in spans
        ),
    )


def _title(spans: Sequence[Span]) -> str:
    count = sum(span.track == "step" for span in spans)
    return "One step" if count == 1 else f"{count} steps, the longest one last"
