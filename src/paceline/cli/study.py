"""``paceline study``: how a training step scales, and what limits it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import frame, step_options

if TYPE_CHECKING:
    from paceline.studies import Study

_MOST_COLUMNS = 7


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "study",
        example="paceline study resnet50 --cluster dgx-h200 --workers 1:4096 --out study\n"
        "paceline study vgg16 --cluster ethernet-10g --link 1gbit:100gbit --strategy sync,daso\n"
        "paceline study my_model.py:make --cluster my.toml --batch 8:256 --json",
    )(study)


def study(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A zoo name, or module:callable.")],
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
    jitter: Annotated[
        float | None,
        typer.Option("--jitter", min=0, help="How much workers' times vary, as 0.05."),
    ] = None,
    precision: step_options.PrecisionName = "fp32",
    memory_format: step_options.MemoryFormatName = "contiguous",
    optimizer: step_options.OptimizerName = None,
    input_shape: step_options.InputShape = step_options.SHAPE,
    classes: step_options.Classes = step_options.CLASSES,
    model_file: Annotated[
        Path | None, typer.Option("--model-file", help="What `paceline fit` wrote.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="With --out: the charts as SVG, too; needs chromium.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for report.html, study.csv, study.json.")
    ] = None,
    json: frame.JsonFlag = False,
) -> None:
    """Show how training scales with workers, links, batch and device, and what limits it."""
    from paceline.cluster import load_cluster
    from paceline.strategies import strategy_names
    from paceline.studies import study as run_study

    step = step_options.make_step(
        model,
        batch=_base_batch(batch),
        precision=precision,
        memory_format=memory_format,
        optimizer=optimizer,
        input_shape=input_shape,
        classes=classes,
    )
    chosen = load_cluster(cluster)
    with frame.progress() as progress:
        found = run_study(
            step,
            cluster=chosen if nodes is None else chosen.with_nodes(nodes),
            strategies=strategy_names() if strategy == "all" else strategy.split(","),
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
        _show(found)
    for warning in found.warnings:
        sys.stderr.write(f"Note: {warning}\n")


def _base_batch(batch: str | None) -> int | None:
    """The batch size that the other axes are studied at: 32, or what is nearest in the range."""
    if batch is None:
        return None
    first, _, last = batch.partition(":")
    if not first.isdigit() or not (last or first).isdigit():
        raise ValueError(f"--batch {batch} is not a range: write it as 8:512, or as 32.")
    return min(max(32, int(first)), int(last or first))


def _maps(texts: list[str] | None) -> dict[str, Any]:
    from paceline.studies.axes import AXES

    if texts is None:
        return {}
    pairs = [tuple(text.split(",")) for text in texts]
    for text, pair in zip(texts, pairs, strict=True):
        if len(pair) != 2 or not set(pair) <= set(AXES) or pair[0] == pair[1]:
            raise ValueError(f"--map {text}: give two of {', '.join(AXES)}, as workers,link.")
    return {"maps": pairs}


def _scalings(text: str) -> Any:
    if text not in ("weak", "strong", "both"):
        raise ValueError(f"--scaling {text}: give weak, strong or both.")
    return ("weak", "strong") if text == "both" else (text,)


def _write(found: Study, folder: Path, *, images: bool) -> None:
    from paceline.studies.report import write_report

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.csv").write_text(found.table.to_csv(), "utf-8")
    (folder / "study.json").write_text(found.to_json(), "utf-8")
    report = folder / "report.html"
    write_report(found, report, roofline=found.kernels, images=folder if images else None)
    sys.stderr.write(f"report written to {report}, its data to study.csv and study.json\n")


def _show(found: Study) -> None:
    from rich.table import Table

    from paceline.cluster.units import format_duration

    screen = frame.console()
    along = found.table.where(sweep="workers", scaling=found.scalings[0])
    counts = _some(sorted(set(along["workers"].tolist())))
    title = f"{found.model} on {found.cluster.name}: step and efficiency by number of workers"
    table = Table("strategy", *(f"{count:,}" for count in counts), title=title)
    for name in found.strategies:
        rows = {row["workers"]: row for row in along.where(strategy=name).rows()}
        cells = [rows.get(count) for count in counts]
        table.add_row(
            name,
            *(
                f"{format_duration(row['step_s'])} {row['efficiency']:.0%}" if row else "–"
                for row in cells
            ),
        )
    screen.print(table)
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


def _some(values: list[int]) -> list[int]:
    """A few of many, the first and the last among them."""
    if len(values) <= _MOST_COLUMNS:
        return values
    places = {round(i * (len(values) - 1) / (_MOST_COLUMNS - 1)) for i in range(_MOST_COLUMNS)}
    return [values[place] for place in sorted(places)]
