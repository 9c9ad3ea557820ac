"""``paceline fit``: train the networks of a kernel profile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import frame


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(app, "fit", example="paceline fit my-gpu.kernels.gz")(fit)


def fit(
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="What `paceline measure kernels` wrote.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The model to write; default: next to the profile.")
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=20, help="Training steps for each family.")
    ] = 3000,
    seed: Annotated[int, typer.Option("--seed", help="For first weights and batches.")] = 0,
    from_nothing: Annotated[
        bool,
        typer.Option("--from-nothing", help="Do not start from paceline's own models."),
    ] = False,
    json: frame.JsonFlag = False,
) -> None:
    """Train one small ensemble of MLPs for each kernel family, and fit the host's costs.

    Every family is trained twice: from random weights, and from the model that comes with paceline.
    The one with the smaller error on unseen kernels is kept.
    """
    from rich.table import Table

    from paceline.kernels.fitted import SUFFIX
    from paceline.kernels.library import model_to_start_from
    from paceline.kernels.profile import SUFFIX as PROFILE_SUFFIX
    from paceline.kernels.profile import load_profile
    from paceline.measure.kernel_fit import fit_profile

    loaded = load_profile(profile)
    target = out or profile.with_name(profile.name.removesuffix(PROFILE_SUFFIX) + SUFFIX)
    start = None
    if not from_nothing:
        start = model_to_start_from(str(loaded.facts.get("device_type", "cuda")))
    begun = time.monotonic()
    with frame.progress() as report:
        model = fit_profile(loaded, report=report, num_steps=steps, seed=seed, start=start)
    model.save(target)
    errors = {name: each.residual for name, each in model.ensembles.items()}
    if json:
        frame.print_json(
            {
                "file": str(target),
                "device": model.device.name,
                "seconds": time.monotonic() - begun,
                "residuals": errors,
                "host_error": model.host.spread if model.host.is_known else None,
            }
        )
        return
    table = Table("family", "error on unseen kernels", title=f"{model.device.name}")
    for name, error in errors.items():
        table.add_row(name, f"{error:.1%}")
    if model.host.is_known:
        table.add_row("host", f"{model.host.spread:.1%}")
    frame.console().print(table)
    frame.say(f"written to {target}")
