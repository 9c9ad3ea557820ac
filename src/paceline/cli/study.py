"""``paceline study``: how a training step scales, and what limits it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import frame, report_options, step_options
from paceline.cli.options import names_in

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.studies import Study
    from paceline.studies.axes import AxisName

_MOST_COLUMNS = 6


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "study",
        example="paceline study resnet50 --cluster dgx-h200 --workers 1:4096 --out study\n"
        "paceline study vgg16 --cluster ethernet-10g --link 1gbit:100gbit --strategy sync,daso\n"
        "paceline study my_model.py:make --cluster my.toml --batch 8:256 --json",
    )(study)


@step_options.spread
def study(
    model: step_options.Model,
    cluster: Annotated[str, typer.Option("--cluster", help="A built-in cluster or a TOML file.")],
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Another number of nodes.")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="Strategies, separated by commas, or 'all'.")
    ] = "all",
    workers: Annotated[
        str | None, typer.Option("--workers", help="Numbers of workers, as 1:4096.")
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", help="Bandwidths between nodes, as 1gbit:800gbit.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", help="Batch sizes per worker, as 8:512.")
    ] = None,
    arithmetic: Annotated[
        str | None, typer.Option("--arithmetic", help="Factors on the device's speed, as 0.5:4.")
    ] = None,
    memory_bandwidth: Annotated[
        str | None, typer.Option("--memory-bandwidth", help="Factors on its memory's, as 0.5:4.")
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", help="Two axes to vary together, as workers,link."),
    ] = None,
    scaling: Annotated[str, typer.Option("--scaling", help="weak, strong or both.")] = "both",
    jitter: step_options.Jitter = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    model_file: step_options.ModelFile = None,
    images: report_options.Images = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for report.html, study.csv, study.json.")
    ] = None,
    json: frame.JsonFlag = False,
) -> None:
    """Show how training scales with workers, links, batch and device, and what limits it."""
    from paceline.cluster import load_cluster
    from paceline.strategies import comparable_strategy_names
    from paceline.studies import study as run_study

    report_options.check(out, images)
    step = described.load(model, batch=_base_batch(batch))
    chosen = load_cluster(cluster)
    with frame.progress() as progress:
        found = run_study(
            step,
            cluster=chosen if nodes is None else chosen.with_nodes(nodes),
            strategies=comparable_strategy_names()
            if strategy == "all"
            else names_in(strategy, "--strategy"),
            workers=workers,
            link=link,
            batch=batch,
            arithmetic=arithmetic,
            memory_bandwidth=memory_bandwidth,
            **_maps(map_),
            scalings=_scalings(scaling),
            kernel_model=model_file,
            jitter=jitter,
            progress=progress,
        )
    if out is not None:
        _write(found, out, images=images)
    if json:
        frame.print_json(found.to_dict())
    else:
        given: dict[AxisName, Any] = {
            "batch": batch,
            "arithmetic": arithmetic,
            "memory_bandwidth": memory_bandwidth,
            "link": link,
        }
        varied = [axis for axis, values in given.items() if values and ":" in values]
        _show(found, ["workers", *varied])
    for warning in found.warnings:
        frame.note(f"Note: {warning}")


def _base_batch(batch: str | None) -> int | None:
    """The batch size that the other axes are studied at: 32, or what is nearest in the range."""
    if batch is None:
        return None
    first, _, last = batch.partition(":")
    if not all(
        each.isascii() and each.isdecimal() and len(each) < 13 for each in (first, last or first)
    ):
        raise ValueError(f"--batch {batch} is not a range: write it as 8:512, or as 32.")
    return min(max(32, int(first)), int(last or first))


def _maps(texts: list[str] | None) -> dict[str, Any]:
    from paceline.studies.axes import AXES

    if texts is None:
        return {}
    pairs = [tuple(text.replace("-", "_").split(",")) for text in texts]
    for text, pair in zip(texts, pairs, strict=True):
        if len(pair) != 2 or not set(pair) <= set(AXES) or pair[0] == pair[1]:
            raise ValueError(f"--map {text}: give two of {', '.join(AXES)}, as workers,link.")
    return {"maps": pairs}


def _scalings(text: str) -> Any:
    if text not in ("weak", "strong", "both"):
        raise ValueError(f"--scaling {text}: give weak, strong or both.")
    return ("weak", "strong") if text == "both" else (text,)


def _write(found: Study, folder: Path, *, images: str | None) -> None:
    from paceline.studies.report import report_page

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.csv").write_text(found.table.to_csv(), "utf-8")
    (folder / "study.json").write_text(found.to_json(), "utf-8")
    report_options.write(report_page(found, roofline=found.kernels), folder, images)
    frame.note(f"its data written to {folder / 'study.csv'} and study.json")


def _show(found: Study, axes: list[AxisName]) -> None:
    screen = frame.console()
    for axis in axes:
        _show_axis(screen, found, axis)
    base = found.base_row()
    gains = ", ".join(
        f"{name.removeprefix('gain_').replace('_', ' ')} {base[name]:.1%}"
        for name in base
        if name.startswith("gain_") and base[name] >= 0.0005
    )
    screen.print(
        f"At {base['workers']:,} workers, {base['strategy']} is limited by {base['bottleneck']}. "
        f"A tenth more of each resource would save: {gains or 'nothing'}."
    )
    for sentence in found.crossings:
        screen.print(sentence)


def _show_axis(screen: Console, found: Study, axis: AxisName) -> None:
    """Step and efficiency along one axis, a line per strategy."""
    from rich.table import Column, Table

    from paceline.cluster.units import format_bandwidth, format_duration
    from paceline.studies.axes import TITLES

    column = "link_bytes_per_s" if axis == "link" else axis
    scaling = found.scalings[0] if axis == "workers" else "weak"
    along = found.table.where(sweep=axis, scaling=scaling)
    values = _some(sorted(set(along[column].tolist())))
    texts = [
        format_bandwidth(float(f"{8 * value:.3g}") / 8, bits=True)
        if axis == "link"
        else f"{value:,.0f}"
        if axis in ("workers", "batch")
        else f"{value:,.4g}"
        for value in values
    ]
    title = f"{found.model} on {found.cluster.name}: step and efficiency by {TITLES[axis]}"
    table = Table(Column("strategy", no_wrap=True), *texts, title=title)
    for name in found.strategies:
        rows = {row[column]: row for row in along.where(strategy=name).rows()}
        table.add_row(
            name,
            *(
                f"{format_duration(row['step_s'])} {row['efficiency']:.0%}" if row else "–"
                for row in map(rows.get, values)
            ),
        )
    screen.print(table)


def _some(values: list[float]) -> list[float]:
    """A few of many, the first and the last among them, powers of two if there are some."""
    if len(values) <= _MOST_COLUMNS:
        return values
    doubles = {value for value in values if math.log2(value).is_integer()}
    kept = sorted(doubles | {values[0], values[-1]}) if len(doubles) > 2 else values
    last = min(_MOST_COLUMNS, len(kept)) - 1
    return [kept[round(i * (len(kept) - 1) / last)] for i in range(last + 1)]
