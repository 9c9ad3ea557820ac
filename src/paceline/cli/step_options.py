"""The options by which commands describe a training step, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import frame

if TYPE_CHECKING:
    from paceline.steps import Step

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A zoo name, or module:callable.")]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Samples per worker and step; default: 32.")
]
# What a prediction of the step needs, too.
ModelFile = Annotated[Path | None, typer.Option("--model-file", help="What `paceline fit` wrote.")]
Jitter = Annotated[
    float | None,
    typer.Option("--jitter", min=0, help="How much workers' times vary, as 0.05."),
]
Epochs = Annotated[float, typer.Option("--epochs", help="How often the run sees the samples.")]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a model is trained; a command that is :func:`spread` has an option for each field."""

    precision: Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")] = (
        "fp32"
    )
    memory_format: Annotated[
        str, typer.Option("--memory-format", help="contiguous or channels_last.")
    ] = "contiguous"
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", help="sgd, adam, adamw, rprop or lbfgs; default: the model's."),
    ] = None
    input_shape: Annotated[
        str, typer.Option("--input", help="Shape of a sample of your own model: 3x224x224.")
    ] = "3x224x224"
    classes: Annotated[int, typer.Option("--classes", min=1, help="Classes of your own model.")] = (
        1000
    )

    def load(self, model: str, *, batch: int | None, device: str = "meta") -> Step:
        """The step that is described; ValueError with a sentence if there is no such step."""
        from paceline.steps import load_step

        return load_step(
            model,
            batch=batch,
            precision=self.precision,  # type: ignore[arg-type]
            memory_format=self.memory_format,  # type: ignore[arg-type]
            optimizer=self.optimizer,
            input_shape=frame.parse_shape(self.input_shape),
            num_classes=self.classes,
            device=device,
        )

    def arguments(self) -> list[str]:
        """The same options for another process."""
        given = {
            "--precision": self.precision,
            "--memory-format": self.memory_format,
            "--optimizer": self.optimizer,
            "--input": self.input_shape,
            "--classes": str(self.classes),
        }
        return [word for name, value in given.items() if value for word in (name, value)]


DEFAULTS = StepOptions()


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``described: StepOptions`` an option for each of the fields."""
    fields = inspect.signature(StepOptions, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        is_all = parameter.annotation is StepOptions
        each = fields.values() if is_all else [parameter]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in each]

    def run(**given: Any) -> None:
        described = StepOptions(**{name: given.pop(name) for name in fields})
        command(**given, described=described)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
