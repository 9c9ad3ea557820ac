"""``paceline trace``: what to do with traces beside looking at them in Perfetto."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame, report_options

if TYPE_CHECKING:
    from paceline.studies.trace_comparison import TraceComparison

app = frame.new_app(help_text="Compare a predicted run with a measured one.")


@app.callback()
def traces() -> None:
    """Compare a predicted run with a measured one."""


def compare(
    predicted: Annotated[
        Path, typer.Argument(metavar="PREDICTED", help="What `predict --trace` wrote.")
    ],
    measured: Annotated[
        Path, typer.Argument(metavar="MEASURED", help="What `attach(trace=)` wrote.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for report.html and comparison.json.")
    ] = None,
    images: report_options.Images = None,
    json: frame.JsonFlag = False,
) -> None:
    """Lay a predicted trace over a measured one: per phase, where the two part."""
    from paceline.studies.reports.traces import trace_page
    from paceline.studies.trace_comparison import compare_traces

    report_options.check(out, images)
    found = compare_traces(predicted, measured)
    if out is not None:
        title = measured.name.removesuffix(".gz").removesuffix(".json")
        report_options.write(trace_page(found, title=title), out, images)
        text = json_module.dumps(found.to_dict(), indent=1)
        (out / "comparison.json").write_text(text + "\n", "utf-8")
    if json:
        frame.print_json(found.to_dict())
    else:
        _show(found)


frame.command(
    app,
    "compare",
    example="paceline trace compare predicted.json measured.json --out comparison\n"
    "paceline trace compare predicted.json measured.json.gz --json",
)(compare)


def _show(found: TraceComparison) -> None:
    from rich.table import Table

    from paceline.studies.reports.traces import overview_of, summary_of

    overview = overview_of(found)
    table = Table(*overview.header)
    for row in overview.rows:
        table.add_row(*row)
    screen = frame.console()
    screen.print(table)
    for sentence in summary_of(found):
        screen.print(sentence)
