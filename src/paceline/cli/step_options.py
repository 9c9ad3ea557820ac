"""The options by which commands describe a training step."""

from __future__ import annotations

from typing import Annotated

import typer

Batch = Annotated[int, typer.Option("--batch", min=1, help="Samples a worker and step.")]
PrecisionName = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
MemoryFormatName = Annotated[
    str, typer.Option("--memory-format", help="contiguous or channels_last.")
]
OptimizerName = Annotated[
    str | None, typer.Option("--optimizer", help="sgd, adam or adamw; default: the model's.")
]
InputShape = Annotated[
    str, typer.Option("--input", help="One sample of your own model, as 3x224x224.")
]
Classes = Annotated[int, typer.Option("--classes", min=1, help="Classes of your own model.")]

BATCH, SHAPE, CLASSES = 32, "3x224x224", 1000
"""What the options are by default."""
