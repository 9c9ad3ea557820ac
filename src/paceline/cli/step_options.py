"""The options by which commands describe a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame

if TYPE_CHECKING:
    from paceline.steps import Step

Batch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Samples per worker and step; default: 32.")
]
PrecisionName = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
MemoryFormatName = Annotated[
    str, typer.Option("--memory-format", help="contiguous or channels_last.")
]
OptimizerName = Annotated[
    str | None,
    typer.Option("--optimizer", help="sgd, adam, adamw, rprop or lbfgs; default: the model's."),
]
InputShape = Annotated[
    str,
    typer.Option("--input", help="Shape of a sample of your own model: 3x224x224."),
]
Classes = Annotated[int, typer.Option("--classes", min=1, help="Classes of your own model.")]

SHAPE, CLASSES = "3x224x224", 1000
"""The defaults."""


def make_step(
    model: str,
    *,
    batch: int | None,
    precision: str,
    memory_format: str,
    optimizer: str | None,
    input_shape: str,
    classes: int,
    device: str = "meta",
) -> Step:
    """The step that the options describe; ValueError with a sentence if there is no such step."""
    from paceline.steps import load_step

    return load_step(
        model,
        batch=batch,
        precision=precision,  # type: ignore[arg-type]
        memory_format=memory_format,  # type: ignore[arg-type]
        optimizer=optimizer,
        input_shape=frame.parse_shape(input_shape),
        num_classes=classes,
        device=device,
    )
