"""``paceline advise``: what to do about it."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame, report_options, step_options
from paceline.cli.options import names_in

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.studies import Advice
    from paceline.studies.advise import Change


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "advise",
        example="paceline advise resnet50 --cluster ethernet-10g\n"
        "paceline advise bert-base --cluster aws-p3-16xlarge,aws-p4d --samples 1000000 "
        "--deadline 8h --budget 500\n"
        "paceline advise my_model.py:make --cluster my.toml --max-global-batch 8192 --out advice",
    )(advise)


@step_options.spread
def advise(
    model: step_options.Model,
    cluster: Annotated[
        str, typer.Option("--cluster", help="Built-in clusters or TOML files, by commas.")
    ],
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="The most nodes to use.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", help="Strategies that may be advised, separated by commas."),
    ] = None,
    max_global_batch: Annotated[
        int | None,
        typer.Option("--max-global-batch", min=1, help="The largest that training stands."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Samples of an epoch.")
    ] = None,
    epochs: step_options.Epochs = 1.0,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="How long the run may take, as 8h or 1h30m.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="US dollars that the run may cost.")
    ] = None,
    jitter: step_options.Jitter = None,
    batch: step_options.Batch = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    model_file: step_options.ModelFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for report.html and advice.json.")
    ] = None,
    images: report_options.Images = None,
    json: frame.JsonFlag = False,
) -> None:
    """Advise how to train: strategy, periods, wire, batch, buckets, nodes and cluster."""
    frame.collect_rarely()

    from paceline.studies import advise as find_advice
    from paceline.studies.wishes import parse_time

    report_options.check(out, images)
    if not 0 < epochs < math.inf or (epochs != 1.0 and samples is None):
        raise ValueError("--epochs needs --samples, the samples of one epoch, and is above 0.")
    step = described.load(model, batch=batch)
    with frame.progress() as progress:
        found = find_advice(
            step,
            cluster=names_in(cluster, "--cluster"),
            nodes=nodes,
            strategies=None if strategy is None else names_in(strategy, "--strategy"),
            max_global_batch=max_global_batch,
            samples=None if samples is None else round(samples * epochs),
            deadline_s=None if deadline is None else parse_time(deadline),
            budget_dollars=budget,
            kernel_model=model_file,
            jitter=jitter,
            progress=progress,
        )
    if out is not None:
        _write(found, out, images)
    if json:
        frame.print_json(found.to_dict())
    else:
        _show(found)
    for note in found.notes:
        frame.note(f"Note: {note}")


def _write(found: Advice, folder: Path, images: str | None) -> None:
    from paceline.studies.reports.advice import advice_page

    plain = found.to_dict()
    report_options.write(advice_page(plain), folder, images)
    (folder / "advice.json").write_text(json_module.dumps(plain, indent=1) + "\n", "utf-8")


def _show(found: Advice) -> None:
    from paceline.cluster.units import format_duration

    screen = frame.console()
    prediction, last = found.prediction, found.changes[-1]
    low, high = prediction.range_s
    screen.print(f"{found.model}: {found.setting}", style="bold", highlight=False)
    screen.print(
        f"step {format_duration(prediction.step_s)} ({format_duration(low)} to "
        f"{format_duration(high)}), {prediction.throughput_per_s:,.0f} samples/s, "
        f"{_compared(last)}; limited by {prediction.bottleneck}",
        highlight=False,
    )
    _show_run(screen, found)
    _show_changes(screen, found.changes, "from plain DDP to this, one change at a time")
    if found.alternatives:
        _show_changes(screen, found.alternatives, "instead", with_gain=False)
    screen.print("What it may cost:", style="bold")
    for caution in found.cautions:
        screen.print(f"- {caution}", highlight=False)
    screen.print("How to run it:", style="bold")
    for line in (found.attach, *found.commands.values()):
        screen.print(f"  {line}", highlight=False, soft_wrap=True)


def _show_run(screen: Console, found: Advice) -> None:
    from paceline.studies.wishes import clock, money

    run = found.prediction.run
    if run is None:
        return
    low, high = (clock(run.seconds * (1 + sign * found.prediction.uncertainty)) for sign in (-1, 1))
    price = "price not known" if run.dollars is None else money(run.dollars)
    screen.print(
        f"run of {run.samples:,} samples: {clock(run.seconds)} ({low} to {high}), "
        f"{run.num_steps:,} steps, {price}",
        highlight=False,
    )
    for verdict in found.verdicts:
        style = "green" if verdict.is_met else "red"
        screen.print(verdict.sentence, style=style, highlight=False)


def _show_changes(
    screen: Console, changes: tuple[Change, ...], title: str, *, with_gain: bool = True
) -> None:
    from rich.table import Column, Table

    has_prices = all(change.dollars_per_million_samples is not None for change in changes)
    table = Table(Column("way to train", overflow="fold"), "samples/s", title=title)
    for heading in ("gain",) if with_gain else ():
        table.add_column(heading, justify="right")
    table.add_column("over plain DDP")
    if has_prices:
        table.add_column("$ per million", justify="right")
    for change in changes:
        table.add_row(
            change.what,
            f"{change.prediction.throughput_per_s:,.0f}",
            *((f"{change.gain - 1:+.0%}",) if with_gain else ()),
            _times(change),
            *((f"{change.dollars_per_million_samples:,.2f}",) if has_prices else ()),
        )
    screen.print(table)


def _compared(change: Change) -> str:
    return "plain DDP itself" if change.low == change.high else f"{_times(change)} plain DDP"


def _times(change: Change) -> str:
    if change.low == change.high:
        return "1"
    return f"{change.over_plain:.2f} times ({change.low:.2f} to {change.high:.2f})"
