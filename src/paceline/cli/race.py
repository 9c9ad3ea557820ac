"""``paceline race``: strategies side by side, for real, on an emulated cluster or in a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame
from paceline.cli.lab import (
    ClusterOption,
    EmulationOption,
    LinkOption,
    NodesOption,
    SlowOption,
    WorkersOption,
)
from paceline.cli.options import parse_options

if TYPE_CHECKING:
    from paceline.race.race import Race
    from paceline.race.task import RaceSettings

# Reached by every strategy that works, and not in the first epoch.
_DEFAULT_TARGETS = {"digits": 0.95, "stdlib-text": 0.30}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "race",
        example="paceline race\ntorchrun --nproc-per-node 4 -m paceline race\n"
        "srun paceline race --strategies ddp,daso --out /scratch/race\n"
        "paceline race --link 1gbit --nodes 3 --epochs 3 --json\n"
        "paceline race --strategies ddp,daso --option daso.period=8 --option daso.wire=int8",
    )(race)


def race(
    strategies: Annotated[
        str, typer.Option("--strategies", help="What to race, separated by commas.")
    ] = "ddp,local-sgd,daso,floor",
    peers: Annotated[
        bool, typer.Option("--peers", help="Also race other libraries' strategies.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="A strategy's option."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the data.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="For weights, split and shuffle.")] = 0,
    model: Annotated[str, typer.Option("--model", help="A small model of the zoo.")] = "small-cnn",
    data: Annotated[
        str | None, typer.Option("--data", help="An embedded data set; default: the model's.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples per worker and step.")] = 32,
    learning_rate: Annotated[float, typer.Option("--lr", help="Of SGD with momentum 0.9.")] = 0.05,
    target: Annotated[
        float | None,
        typer.Option("--target", min=0, max=1, help="The accuracy to reach; the time is taken."),
    ] = None,
    predict: Annotated[
        bool,
        typer.Option("--predict/--no-predict", help="First measure the links and predict."),
    ] = True,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    workers: WorkersOption = None,
    link: LinkOption = None,
    slow: SlowOption = None,
    emulation: EmulationOption = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for report.html, race.json and logs.")
    ] = None,
    json: frame.JsonFlag = False,
) -> None:
    """Predict and train the same model with each strategy, and compare.

    On a cluster that is emulated here or, started by torchrun, srun or mpirun, in that
    job: the links are measured, each strategy's step is predicted, then each one trains.
    The first worker shows the results and writes a report. `ddp` is torch's
    DistributedDataParallel. `floor` communicates inside each node only: no strategy can
    be faster.
    """
    import os

    from paceline.cli.race_view import LiveRace
    from paceline.lab.lab import choose_emulation, describe_emulation
    from paceline.lab.layout import lay_out, parse_slow
    from paceline.race.entry import entry_maker
    from paceline.race.peers import PEERS
    from paceline.race.race import run_race
    from paceline.race.task import RaceSettings, count_steps
    from paceline.teams.launcher import find_place
    from paceline.zoo import default_data_for, load_data_for

    names = [name.strip() for name in strategies.split(",") if name.strip()]
    if peers:
        names += [name for name in PEERS if name not in names]
    if not names:
        raise ValueError("--strategies is empty; name at least one, such as ddp")
    for name in names:
        entry_maker(name)
    data_name = data or default_data_for(model)
    data_set = load_data_for(model, data_name, seed)
    settings = RaceSettings(
        model=model,
        data=data_name,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        target=_DEFAULT_TARGETS[data_set.name] if target is None else target,
        seed=seed,
        options=parse_options(option or [], names),
    )
    folder = out or Path("runs", time.strftime("race-%Y%m%d-%H%M%S"))
    job = find_place(os.environ)
    num_examples = len(data_set.train)
    if job.num_workers > 1:
        of_lab = {"--nodes": nodes, "--workers": workers, "--link": link, "--slow": slow}
        given = [name for name, value in of_lab.items() if value]
        if given or emulation != "auto":
            raise ValueError(
                f"{(given or ['--emulation'])[0]} is for emulated clusters, and this race runs in "
                f"a job of {job.num_workers} workers that {job.launcher} started: leave it out"
            )
        outcome = _race_in_job(
            names, settings, cluster, predict=predict, folder=folder, num_examples=num_examples
        )
    else:
        layout = lay_out(cluster=cluster, nodes=nodes, workers_per_node=workers, link=link)
        num_steps = count_steps(settings, num_examples, layout.num_workers)
        kind = choose_emulation(emulation)
        slow_workers = parse_slow(slow or [], layout)
        notes = frame.stderr_console()
        notes.print(f"lab: {describe_emulation(kind)}", style="dim", soft_wrap=True)
        with LiveRace(names, num_steps) as live:
            outcome = run_race(
                layout,
                names,
                settings,
                folder=folder,
                slow=slow_workers,
                emulation=kind,
                predict=predict,
                on_progress=live.update,
            )
    if outcome is not None:  # the first worker speaks for all
        _show(outcome, folder, as_json=json)


def _race_in_job(
    names: list[str],
    settings: RaceSettings,
    cluster: str | None,
    *,
    predict: bool,
    folder: Path,
    num_examples: int,
) -> Race | None:
    """Race in the job that a launcher started; None on all workers but the first."""
    import os

    import torch.distributed as dist

    from paceline.cli.race_view import LiveRace
    from paceline.cluster import load_cluster
    from paceline.race.race import race_in_job
    from paceline.race.task import count_steps
    from paceline.teams.launcher import find_place

    place = find_place(os.environ)
    base = None if cluster is None else load_cluster(cluster)
    num_steps = count_steps(settings, num_examples, place.num_workers)
    with LiveRace(names, num_steps, is_shown=place.rank == 0) as live:
        outcome = race_in_job(
            names, settings, folder=folder, base=base, predict=predict, on_progress=live.update
        )
    dist.barrier()
    dist.destroy_process_group()
    return outcome


def _show(outcome: Race, folder: Path, *, as_json: bool) -> None:
    from paceline.cli.race_view import race_table
    from paceline.race.race import REPORT, RESULTS
    from paceline.race.report import place_text

    if as_json:
        frame.print_json({**outcome.to_dict(), "report": str(folder / REPORT)})
        return
    settings = outcome.settings
    how = f" ({outcome.emulation})" if outcome.emulation else ""
    title = f"{settings.model} on {settings.data}: {place_text(outcome.cluster)}{how}"
    frame.console().print(race_table(outcome.results, title=title, target=settings.target))
    frame.say(f"Results and logs: {folder / RESULTS}")
    frame.say(f"Report: {folder / REPORT}")
