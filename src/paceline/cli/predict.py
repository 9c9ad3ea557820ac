"""``paceline predict``: what a training step costs, before it is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame

if TYPE_CHECKING:
    from paceline.cluster import Device
    from paceline.rehearse import Prediction


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "predict",
        example="paceline predict resnet50 --device h200 --batch 256 --precision bf16\n"
        "paceline predict my_model.py:make --input 3x128x128 --classes 10 --device a100 --json",
    )(predict)


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A zoo name, or module:callable.")],
    device: Annotated[str, typer.Option("--device", help="The worker's device.")] = "h200",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples a worker and step.")] = 32,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")
    ] = "fp32",
    memory_format: Annotated[
        str, typer.Option("--memory-format", help="contiguous or channels_last.")
    ] = "contiguous",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd, adam or adamw; default: the model's.")
    ] = None,
    input_shape: Annotated[
        str, typer.Option("--input", help="One sample of your own model, as 3x224x224.")
    ] = "3x224x224",
    classes: Annotated[
        int, typer.Option("--classes", min=1, help="Classes of your own model.")
    ] = 1000,
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
    """Predict one worker's training step on a device that need not be here."""
    from paceline.rehearse import predict as predict_step
    from paceline.steps import load_step

    step = load_step(
        model,
        batch=batch,
        precision=precision,  # type: ignore[arg-type]
        memory_format=memory_format,  # type: ignore[arg-type]
        optimizer=optimizer,
        input_shape=_parse_shape(input_shape),
        num_classes=classes,
    )
    wanted = "" if model_file is not None and device == "h200" else device
    prediction = predict_step(
        step, device=_changed(wanted, flops, memory_bandwidth), model=model_file
    )
    if json:
        frame.print_json(prediction.to_dict())
    else:
        _show(prediction)
    for warning in prediction.warnings:
        sys.stderr.write(f"Note: {warning}\n")


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"--input {text} is not a shape: write it as 3x224x224.")
    return tuple(map(int, parts))


def _changed(device: str, flops: str | None, memory_bandwidth: str | None) -> str | Device:
    """The named device, with the figures that were given in place of its own."""
    if flops is None and memory_bandwidth is None:
        return device
    from paceline.cluster.devices import load_device
    from paceline.cluster.units import parse_bandwidth, parse_speed

    base = load_device(device or "h200")
    changes: dict[str, object] = {"name": f"{base.name}*", "source": "given on the command line"}
    if flops is not None:
        changes["flops"] = dict.fromkeys(base.flops, parse_speed(flops))
    if memory_bandwidth is not None:
        changes["memory_bandwidth_bytes_per_s"] = parse_bandwidth(memory_bandwidth)
    return base.replace(**changes)


def _show(prediction: Prediction) -> None:
    from rich.table import Table
    from rich.text import Text

    from paceline.cluster.units import format_duration, format_size

    screen = frame.console()
    low, high = (prediction.step_s * (1 + sign * prediction.uncertainty) for sign in (-1, 1))
    table = Table(show_header=False, box=None, title=_title(prediction), title_justify="left")
    table.add_row(
        "step",
        f"{format_duration(prediction.step_s)}  "
        f"({format_duration(max(low, 0.0))} to {format_duration(high)})",
    )
    table.add_row("throughput", f"{prediction.throughput_per_s:,.0f} samples/s")
    table.add_row("limited by", prediction.bottleneck)
    verdict = "fits" if prediction.fits else "does not fit"
    table.add_row(
        "memory",
        f"{format_size(prediction.memory_bytes)} of {format_size(prediction.memory_limit_bytes)}: "
        f"{verdict}",
    )
    table.add_row("kernels timed by", _methods(prediction))
    screen.print(table)
    screen.print(_bar(prediction, width=60))
    screen.print(
        Text.assemble(
            ("█", "green"), " compute  ", ("█", "yellow"), " communication  ", ("█", "red"), " host"
        )
    )


def _title(prediction: Prediction) -> str:
    return (
        f"{prediction.model}, batch {prediction.batch}, {prediction.precision}, {prediction.device}"
    )


def _methods(prediction: Prediction) -> str:
    shares = [f"{name} {share:.0%}" for name, share in prediction.method.items() if share >= 0.005]
    return ", ".join(shares) + (", carried to this device" if prediction.extrapolated else "")


def _bar(prediction: Prediction, *, width: int) -> object:
    """The step as one bar: compute, exposed communication, host."""
    from rich.text import Text

    parts = (
        (prediction.compute_s, "green"),
        (prediction.exposed_communication_s, "yellow"),
        (prediction.host_s, "red"),
    )
    bar = Text()
    for seconds, colour in parts:
        bar.append("█" * round(width * max(seconds, 0.0) / prediction.step_s), style=colour)
    return bar
