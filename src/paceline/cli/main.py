"""The ``paceline`` command: puts the commands together. Must not import torch."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from paceline.cli import (
    advise,
    cluster,
    device,
    doctor,
    explore,
    fit,
    frame,
    host,
    kernels,
    lab,
    measure,
    meet,
    predict,
    race,
    strategies,
    study,
    trace,
)
from paceline.ending import end_quickly
from paceline.version import __version__

app = frame.new_app(
    help_text="Know what data-parallel training will cost before you run it, "
    "then make it cost less."
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(device.app, name="device")
app.add_typer(lab.app, name="lab")
app.add_typer(measure.app, name="measure")
app.add_typer(trace.app, name="trace")
advise.register(app)
doctor.register(app)
explore.register(app)
fit.register(app)
host.register(measure.app)
kernels.register(measure.app)
meet.register(app)
predict.register(app)
race.register(app)
strategies.register(app)
study.register(app)


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"paceline {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    """Know what data-parallel training will cost before you run it, then make it cost less."""


def main() -> None:
    """Entry point of the ``paceline`` command."""
    end_quickly()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an old terminal may not have every character
            stream.reconfigure(errors="backslashreplace")
    sys.exit(frame.run(app, sys.argv[1:]))
