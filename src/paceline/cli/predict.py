"""``paceline predict``: what a training step costs, before it is run."""

from __future__ import annotations

import gc
import math
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame, step_options
from paceline.cli.options import parse_options

if TYPE_CHECKING:
    from rich.text import Text

    from paceline.cluster import Cluster, Device
    from paceline.rehearse import Prediction
    from paceline.rehearse.run import Run

_OBJECTS_BETWEEN_COLLECTIONS = 500_000
# Glyphs that differ, since not every terminal has colours.
_PARTS = (("compute", "█", "green"), ("communication", "░", "yellow"), ("host", "▒", "red"))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "predict",
        example="paceline predict resnet50 --device h200 --batch 256 --precision bf16\n"
        "paceline predict vgg16 --cluster ethernet-10g --compare\n"
        "paceline predict resnet50 --cluster aws-p4d --nodes 4 --samples 1281167 --epochs 90\n"
        "paceline predict my_model.py:make --input 3x128x128 --classes 10 --device a100 --json",
    )(predict)


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A zoo name, or module:callable.")],
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="The worker's device; default: the cluster's, the model file's, h200."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A built-in cluster or a TOML file.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Another number of nodes.")
    ] = None,
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            "--workers-per-node", "--workers", min=1, help="Another number of workers per node."
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How the cluster trains: `paceline strategies`.")
    ] = "sync",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="A strategy's option."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All strategies.")] = False,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Samples of an epoch: cost of a run.")
    ] = None,
    epochs: Annotated[
        float, typer.Option("--epochs", help="How often the run sees the samples.")
    ] = 1.0,
    jitter: Annotated[
        float | None,
        typer.Option("--jitter", min=0, help="How much workers' times vary, as 0.05."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the steps for Perfetto: *.json[.gz].")
    ] = None,
    batch: step_options.Batch = None,
    precision: step_options.PrecisionName = "fp32",
    memory_format: step_options.MemoryFormatName = "contiguous",
    optimizer: step_options.OptimizerName = None,
    input_shape: step_options.InputShape = step_options.SHAPE,
    classes: step_options.Classes = step_options.CLASSES,
    flops: Annotated[
        str | None, typer.Option("--flops", help="The device's arithmetic, as '300 TFLOP/s'.")
    ] = None,
    memory_bandwidth: Annotated[
        str | None, typer.Option("--memory-bandwidth", help="The device's, as '2 TB/s'.")
    ] = None,
    model_file: Annotated[
        Path | None, typer.Option("--model-file", help="What `paceline fit` wrote.")
    ] = None,
    json: frame.JsonFlag = False,
) -> None:
    """Predict a training step on a device, or on a cluster, that need not be here."""
    # Imports and captures make a million objects that stay. Looking through them for garbage time
    # and again took a seventh of this command's time.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)

    from paceline.rehearse import predict as predict_step
    from paceline.rehearse.prediction import fastest
    from paceline.strategies import strategy_names

    step = step_options.make_step(
        model,
        batch=batch,
        precision=precision,
        memory_format=memory_format,
        optimizer=optimizer,
        input_shape=input_shape,
        classes=classes,
    )
    if compare and cluster is None:
        raise ValueError("--compare needs a --cluster: one worker alone needs no strategy.")
    own = _own_device(device, cluster, model_file)
    wanted = _changed(own, flops, memory_bandwidth) if own is not None else None
    chosen: str | Cluster | None = cluster
    if cluster is not None and own is None and (flops or memory_bandwidth):
        chosen = _with_changed_devices(cluster, flops, memory_bandwidth)
    names = strategy_names() if compare else [strategy]
    options = parse_options(option or [], names)
    if not 0 < epochs < math.inf or (epochs != 1.0 and samples is None):
        raise ValueError("--epochs needs --samples, the samples of one epoch, and is above 0.")
    if compare and trace is not None:
        raise ValueError("--trace is of one strategy: leave --compare out.")

    def predicted(name: str) -> Prediction:
        return predict_step(
            step,
            device=wanted,
            cluster=chosen,
            nodes=nodes,
            workers_per_node=workers_per_node,
            strategy=name,
            kernel_model=model_file,
            jitter=jitter,
            samples=None if samples is None else round(samples * epochs),
            trace=trace,
            **options.get(name, {}),
        )

    predictions, left_out = [predicted(names[0])], []
    for name in names[1:]:
        try:
            predictions.append(predicted(name))
        except ValueError as problem:  # not of the step or the cluster: the first one did it
            left_out.append(f"{name} is left out: {problem}")
    if json:
        plain = [prediction.to_dict() for prediction in predictions]
        first = [prediction.strategy for prediction in fastest(predictions)]
        frame.print_json({"predictions": plain, "fastest": first} if compare else plain[0])
    elif compare:
        _show_all(predictions)
    else:
        _show(predictions[0])
    if trace is not None:
        sys.stderr.write(f"trace written to {trace}; open it at ui.perfetto.dev\n")
    notes = [*predictions[0].warnings, *left_out, *_too_close(predictions)]
    for note in notes:
        sys.stderr.write(f"Note: {note}\n")


def _own_device(
    name: str | None, cluster: str | None, model_file: Path | None
) -> str | Device | None:
    """The device that was asked for; the model file's; None for the cluster's own."""
    if name is not None:
        return name
    if model_file is not None:
        from paceline.kernels import load_model

        return load_model(model_file).device
    return "h200" if cluster is None else None


def _with_changed_devices(cluster: str, flops: str | None, memory_bandwidth: str | None) -> Cluster:
    """The cluster, every device of which has the figures that were given."""
    from paceline.cluster import load_cluster

    own = load_cluster(cluster)
    nodes = []
    for node in own.node_kinds:
        device = _changed(node.device, flops, memory_bandwidth)
        nodes.append(node.replace(device=device))
    return own.replace(node_kinds=tuple(nodes))


def _changed(device: str | Device, flops: str | None, memory_bandwidth: str | None) -> str | Device:
    """The named device, with the figures that were given in place of its own."""
    if flops is None and memory_bandwidth is None:
        return device
    from paceline.cluster.devices import load_device
    from paceline.cluster.units import parse_bandwidth, parse_speed

    base = load_device(device) if isinstance(device, str) else device
    changes: dict[str, object] = {"name": f"{base.name}*", "source": "given on the command line"}
    if flops is not None:
        changes["flops"] = dict.fromkeys(base.flops, parse_speed(flops))
    if memory_bandwidth is not None:
        changes["memory_bandwidth_bytes_per_s"] = parse_bandwidth(memory_bandwidth)
    return base.replace(**changes)


def _show(prediction: Prediction) -> None:
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
    table.add_row("throughput", f"{prediction.throughput_per_s:,.0f} samples/s")
    if prediction.workers > 1:
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


def _run(run: Run) -> str:
    parts = [
        f"{run.num_steps:,} steps",
        str(timedelta(seconds=round(run.seconds))),
        f"{run.device_hours:,.1f} device-hours",
        "price not known" if run.dollars is None else f"{run.dollars:,.2f} US dollars",
    ]
    return ", ".join(parts)


def _legend() -> Text:
    from rich.text import Text

    return Text("  ").join(
        Text.assemble((glyph, colour), f" {name}") for name, glyph, colour in _PARTS
    )


def _show_all(predictions: list[Prediction]) -> None:
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


def _too_close(predictions: list[Prediction]) -> list[str]:
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
    return str(timedelta(seconds=round(run.seconds))), dollars


def _title(prediction: Prediction) -> str:
    where = prediction.device
    if prediction.workers > 1:
        where = f"{prediction.workers} x {prediction.device} on {prediction.nodes} nodes"
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
