"""``paceline race``: strategies side by side, for real, on an emulated cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from rich.table import Table

    from paceline.race.race import Race


# Reached by every strategy that works, and not in the first epoch.
_DEFAULT_TARGETS = {"digits": 0.95, "stdlib-text": 0.30}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "race",
        example="paceline race\npaceline race --link 1gbit --nodes 3 --epochs 3 --json\n"
        "paceline race --strategies ddp,daso --option daso.period=8 --option daso.wire=int8",
    )(race)


def race(
    strategies: Annotated[
        str, typer.Option("--strategies", help="What to race, separated by commas.")
    ] = "ddp,daso,floor",
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
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    workers: WorkersOption = None,
    link: LinkOption = None,
    slow: SlowOption = None,
    emulation: EmulationOption = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for race.json and logs.")
    ] = None,
    json: frame.JsonFlag = False,
) -> None:
    """Train the same model with each strategy on an emulated cluster, and compare.

    `ddp` is torch's DistributedDataParallel. `floor` communicates inside each
    node only: no strategy can be faster.
    """
    from paceline.lab.lab import choose_emulation, describe_emulation
    from paceline.lab.layout import lay_out, parse_slow
    from paceline.race.entry import entry_maker
    from paceline.race.peers import PEERS
    from paceline.race.race import run_race
    from paceline.race.task import RaceSettings, count_steps
    from paceline.zoo import default_data_for, load_data, zoo_entry

    names = [name.strip() for name in strategies.split(",") if name.strip()]
    if peers:
        names += [name for name in PEERS if name not in names]
    if not names:
        raise ValueError("--strategies is empty; name at least one, such as ddp")
    for name in names:
        entry_maker(name)
    data_name = data or default_data_for(model)
    data_set = load_data(data_name, seed=seed)
    if zoo_entry(model).input_shape != data_set.input_shape:
        raise ValueError(
            f"--model {model} reads inputs of shape {zoo_entry(model).input_shape}, and --data "
            f"{data_name} has {data_set.input_shape}; leave --data out to get data that fits"
        )
    layout = lay_out(cluster=cluster, nodes=nodes, workers=workers, link=link)
    slow_workers = parse_slow(slow or [], layout)
    settings = RaceSettings(
        model=model,
        data=data_name,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        target=_DEFAULT_TARGETS[data_name] if target is None else target,
        seed=seed,
        options=parse_options(option or [], names),
    )
    num_steps = count_steps(settings, len(data_set.train), layout.num_workers)
    kind = choose_emulation(emulation)
    notes = frame.stderr_console()
    notes.print(f"lab: {describe_emulation(kind)}", style="dim", soft_wrap=True)
    folder = out or Path("runs", time.strftime("race-%Y%m%d-%H%M%S"))
    with _LiveProgress(names, num_steps) as live:
        outcome = run_race(
            layout,
            names,
            settings,
            folder=folder,
            slow=slow_workers,
            emulation=kind,
            on_progress=live.update,
        )
    if json:
        frame.print_json(outcome.to_dict())
        return
    frame.console().print(_table(outcome))
    typer.echo(f"Results and logs: {folder / 'race.json'}")


class _LiveProgress:
    """A bar for each entry, on standard error."""

    def __init__(self, names: list[str], num_steps: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        self._progress = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            Elapsed(),
            TextColumn("{task.fields[news]}"),
            console=frame.stderr_console(),
        )
        self._num_steps = num_steps
        self._names = names
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _LiveProgress:
        self._progress.start()
        for name in self._names:
            self._tasks[name] = self._progress.add_task(
                name, total=self._num_steps, start=False, news="waiting for its turn"
            )
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def update(self, name: str, news: dict[str, Any]) -> None:
        """Show how far an entry is."""
        task = self._tasks[name]
        self._progress.start_task(task)
        accuracy = news.get("accuracy")
        text = "" if accuracy is None else f"accuracy {accuracy:.1%}"
        self._progress.update(task, completed=news["steps"], news=text)


def _table(outcome: Race) -> Table:
    from rich.table import Table

    title = f"{outcome.settings.model} on {outcome.settings.data}: {_place(outcome)}"
    table = Table(title=title)
    for header in ("strategy", "step", "waiting", "between nodes", "accuracy"):
        table.add_column(header, justify="left" if header == "strategy" else "right")
    table.add_column(f"time to {outcome.settings.target:.0%}", justify="right")
    for result in outcome.results:
        reached = result["time_to_target_s"]
        table.add_row(
            result["name"],
            f"{result['step_s'] * 1e3:.1f} ms",
            f"{result['waiting_share']:.0%}",
            f"{result['bytes_between_nodes'] / 1e6:.1f} MB",
            f"{result['accuracy']:.1%}",
            "not reached" if reached is None else f"{reached:.1f} s",
        )
    return table


def _place(outcome: Race) -> str:
    from paceline.cluster.units import format_bandwidth

    workers = outcome.cluster.workers_per_node
    nodes = (
        f"{len(workers)}x{workers[0]}"
        if len(set(workers)) == 1
        else "workers " + ",".join(map(str, workers))
    )
    rates = {
        format_bandwidth(node.between.bandwidth_bytes_per_s, bits=True)
        for node in outcome.cluster.node_kinds
    }
    return f"{nodes}, {' and '.join(sorted(rates))} ({outcome.emulation})"
