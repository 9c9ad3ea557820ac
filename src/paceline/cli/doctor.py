"""``paceline doctor``: what is wrong with this environment, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame
from paceline.reading import visible

if TYPE_CHECKING:
    from paceline.doctor.doctor import Examination

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "doctor",
        example="paceline doctor\ntorchrun --nproc-per-node 2 -m paceline doctor\n"
        "srun paceline doctor --json",
    )(doctor)


def doctor(
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for other workers.")
    ] = 30.0,
    json: frame.JsonFlag = False,
) -> None:
    """Look at this environment and say what to mend before you train.

    Backends, the launcher's variables, links, clocks, versions, limits, threads and the lab. In a
    job of torchrun, srun or mpirun, the workers also compare what they see, and sum a number. The
    first worker shows the result. The exit code is 1 if something is broken, and 0 otherwise.
    """
    from paceline.doctor.doctor import examine

    outcome = examine(timeout_s=timeout)
    if outcome is None:  # the first worker speaks for all
        return
    if json:
        frame.print_json(outcome.to_dict())
    else:
        _show(outcome)
    raise typer.Exit(frame.FAILED if outcome.is_broken else 0)


def _show(outcome: Examination) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("topic", "state", "found", box=None, padding=(0, 2, 0, 0), header_style="bold")
    topic = ""
    for finding in outcome.findings:
        workers = f" (worker {', '.join(map(str, finding.workers))})" if finding.workers else ""
        is_named = not workers or finding.text.startswith("worker")
        table.add_row(
            Text(finding.topic if finding.topic != topic else ""),
            Text(finding.level, style=_STYLES[finding.level]),
            # As Text: a host's name is no markup. Made visible before lines are broken.
            Text(visible(finding.text) + ("" if is_named else workers)),
        )
        if finding.remedy:
            table.add_row("", "", Text(visible(f"-> {finding.remedy}"), style="italic"))
        topic = finding.topic
    screen = frame.console()
    screen.print(table)
    counts = {
        level: sum(each.level == level for each in outcome.findings)
        for level in ("broken", "warning")
    }
    screen.print(
        f"{counts['broken']} broken, {counts['warning']} to look at", style="bold", highlight=False
    )
