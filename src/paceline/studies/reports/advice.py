"""The report of an advice, from its plain figures: what to do, what each change brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.studies.charts.advice import changes_section, cost_section
from paceline.studies.page import Page, TextTable
from paceline.studies.words import digits, duration, run_length, with_range

_LAUNCHERS = {"slurm": "Slurm"}


def advice_page(advice: Mapping[str, Any]) -> Page:
    """An advice in words and charts.

    Args:
        advice: What ``Advice.to_dict()`` gives.
    """
    ways = [*advice["changes"], *advice["alternatives"]]
    sections = (
        changes_section(
            advice["changes"],
            heading="What each change brings",
            how_to_read="From plain DDP downwards, each line with all changes above it; the thin "
            "line is the range that two of three measurements fall into.",
        ),
        changes_section(
            advice["alternatives"],
            heading="Other ways at the same place",
            how_to_read="Samples per second over those of plain DDP; where two lines overlap, a "
            "prediction cannot tell which way is the faster one.",
        ),
        cost_section(ways),
    )
    return Page(
        title=f"{advice['model']} on {advice['cluster']}: what to do",
        summary=_summary(advice),
        overview=_overview(advice["changes"], advice["alternatives"]),
        findings=advice["cautions"],
        findings_heading="What it may cost",
        warnings=advice["notes"],
        warnings_heading="Notes",
        sections=[
            *(section for section in sections if section is not None),
        ],
        code={
            "In your training script": advice["attach"],
            **{
                f"With {_LAUNCHERS.get(name, name)}": line
                for name, line in advice["commands"].items()
            },
        },
    )


def _summary(advice: Mapping[str, Any]) -> list[str]:
    found, last = advice["prediction"], advice["changes"][-1]
    texts = [
        f"Advised: {advice['setting']}.",
        f"A step then takes {with_range(found['step_s'], *found['range_s'])}: "
        f"{digits(found['throughput_per_s'])} samples/s, {_compared(last)}.",
    ]
    run = found.get("run")
    if run is not None:
        price = "" if run["dollars"] is None else f" and costs {run['dollars']:,.2f} US dollars"
        texts.append(
            f"The run of {run['samples']:,} samples takes {run_length(run['seconds'])}{price}."
        )
    return [*texts, *_wishes(advice["wishes"])]


def _compared(way: Mapping[str, Any]) -> str:
    is_plain = way["over_plain_range"][0] == way["over_plain_range"][1]
    return "as plain DDP" if is_plain else f"{_times(way)} plain DDP's"


def _times(way: Mapping[str, Any]) -> str:
    low, high = way["over_plain_range"]
    return f"{digits(way['over_plain'])} times ({digits(low)} to {digits(high)})"


def _wishes(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(verdict["sentence"]) for verdict in verdicts if "sentence" in verdict]


def _overview(
    changes: Sequence[Mapping[str, Any]], alternatives: Sequence[Mapping[str, Any]]
) -> TextTable:
    ways = [*changes, *alternatives]
    has_prices = all(way["dollars_per_million_samples"] is not None for way in ways)
    what = [
        *(str(way["what"]) for way in changes),
        *(f"instead: {way['what']}" for way in alternatives),
    ]
    return TextTable(
        header=("what", "time per step", "samples/s", "efficiency", "over plain DDP")
        + (("$ per million samples",) if has_prices else ()),
        rows=[
            (
                name,
                duration(way["step_s"]),
                digits(way["throughput_per_s"]),
                f"{way['scaling_efficiency']:.0%}",
                "1" if way["over_plain_range"][0] == way["over_plain_range"][1] else _times(way),
                *((digits(way["dollars_per_million_samples"]),) if has_prices else ()),
            )
            for name, way in zip(what, ways, strict=True)
        ],
    )
