"""``paceline measure kernels``: how long the kernels of this device take."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import frame, step_options


def register(app: typer.Typer) -> None:
    """Add the command to `paceline measure`."""
    frame.command(
        app,
        "kernels",
        example="paceline measure kernels --device cuda --out my-gpu.kernels.gz\n"
        "paceline fit my-gpu.kernels.gz\n"
        "paceline predict resnet50 --model-file my-gpu.model.safetensors\n"
        "paceline measure kernels --out my-gpu.kernels.gz --model my_step.py:make --budget '60 s'",
    )(kernels)


@step_options.spread
def kernels(
    out: Annotated[
        Path, typer.Option("--out", help="The profile to write or to continue: *.kernels.gz.")
    ],
    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda",
    budget: Annotated[
        str,
        typer.Option("--budget", help="How long to time kernels; the host comes on top."),
    ] = "300 s",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Measure this step first: a zoo name, or module:callable."),
    ] = None,
    batch: step_options.Batch = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of CPU kernels.")
    ] = None,
    fresh_plan: Annotated[
        bool,
        typer.Option(
            "--fresh-plan",
            help="Choose the kernels anew, which takes minutes; default: those of our profile.",
        ),
    ] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Write what would be measured, and stop.")
    ] = False,
    json: frame.JsonFlag = False,
) -> None:
    """Time thousands of kernels on this machine and write them into a profile.

    What is timed: the kernels of the zoo at several batches and precisions, and random neighbours
    of them; what issuing them costs the host; and small real steps. The same command continues a
    run that was interrupted or whose budget was too small. With --model, which may be given several
    times, the kernels of that step are timed first.
    """
    from paceline.cluster.units import parse_duration
    from paceline.kernels.profile import SUFFIX, Profile
    from paceline.measure.kernels import (
        built_in_plan,
        drawn_plan,
        make_plan,
        measure_kernels,
        settings_for,
    )

    if not out.name.endswith(SUFFIX):
        raise ValueError(f"A profile's name ends with {SUFFIX}: give --out {out.stem}{SUFFIX}.")
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    steps = [described.load(name, batch=batch) for name in model or ()]
    with frame.progress() as report:

        def draw() -> Profile:
            if fresh_plan:
                return drawn_plan(settings_for(device), report, num_processes=os.cpu_count() or 1)
            return built_in_plan(device)

        if plan_only:
            profile = make_plan(out, draw, steps=steps)
        else:
            profile = measure_kernels(
                out,
                device=device,
                budget_s=parse_duration(budget),
                report=report,
                steps=steps,
                draw=draw,
            )
    _summarise(profile, out, as_json=json)


def _summarise(profile: object, out: Path, *, as_json: bool) -> None:
    from rich.table import Table

    from paceline.kernels.family import family_of
    from paceline.kernels.profile import Profile

    assert isinstance(profile, Profile)
    measured = Counter(str(family_of(kernel)) for kernel in profile.measured())
    planned = Counter(str(family_of(kernel)) for kernel in profile.planned())
    if as_json:
        frame.print_json(
            {
                "file": str(out),
                "device": profile.facts.get("device_name"),
                "measured": dict(measured),
                "planned": dict(planned),
                "failed": profile.facts.get("failed", {}),
            }
        )
        return
    table = Table("family", "measured", "still planned")
    for family in sorted({*measured, *planned}):
        table.add_row(family, str(measured[family]), str(planned[family]))
    table.add_row("all", str(sum(measured.values())), str(sum(planned.values())), style="bold")
    frame.console().print(table)
    neighbours = profile.facts.get("neighbours", {"tried": {}, "dropped": {}})
    for kind, dropped in neighbours["dropped"].items():
        tried = neighbours["tried"][kind]
        frame.note(f"{kind}: {dropped} of {tried} random modules had sizes that do not fit")
    for op, problem in profile.facts.get("failed", {}).items():
        frame.note(f"{op} could not be measured here: {problem}")
    frame.say(f"written to {out}")
    if planned:
        frame.say("the budget is spent; the same command continues with the rest")
