"""``paceline lab``: runs a command on an emulated cluster, and checks the emulation."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import frame

app = frame.new_app(help_text="Emulated clusters on this machine.")

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="A preset or a TOML file. Default: lab-2x2.")
]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers-per-node", "--workers", help="Workers per node: 2, or one number each: 2,1."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option("--link", help="Rate of each node's link, such as 100mbit."),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="NODE:WORKER=FACTOR", help="Make a worker FACTOR times slower."),
]
ChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--change",
        metavar="'link[ NODE]=RATE at TIME'",
        help="Change a link's rate while the command runs, or that of all links.",
    ),
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="'WHAT at TIME'",
        help="Make something go wrong: 'kill 1:0 at 30s', 'kill 1 at 30s', 'link 1 down at 30s "
        "for 10s', 'link 1=1mbit at 30s for 20s', 'stop 1:0 at 30s for 20s', 'fill FOLDER at 30s'.",
    ),
]
SurviveFlag = Annotated[
    bool,
    typer.Option(
        "--survive",
        help="Start each node on its own: the others go on when one is lost, and 'start 1 at 60s' "
        "starts it again.",
    ),
]
SilenceOption = Annotated[
    str,
    typer.Option(
        "--silence", help="With --survive: a node without a sign of life for so long is lost."
    ),
]
EmulationOption = Annotated[
    str, typer.Option("--emulation", help="auto, namespaces (root on Linux) or software.")
]


@frame.command(
    app,
    "run",
    example="paceline lab run --nodes 2 --workers 2 --link 100mbit -- python train.py\n"
    "paceline lab run --workers 2,1 --slow 1:0=2.0 -- python train.py\n"
    "paceline lab run --change 'link=20mbit at 30s' -- python train.py\n"
    "paceline lab run --survive --fault 'kill 1 at 30s' --fault 'start 1 at 60s' -- "
    "python train.py",
)
def run(
    command: Annotated[list[str], typer.Argument(help="What every worker runs, after --.")],
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    workers: WorkersOption = None,
    link: LinkOption = None,
    slow: SlowOption = None,
    change: ChangeOption = None,
    fault: FaultOption = None,
    survive: SurviveFlag = False,
    silence: SilenceOption = "10s",
    emulation: EmulationOption = "auto",
    json: frame.JsonFlag = False,
) -> None:
    """Run a command on every worker of an emulated cluster, started by torchrun.

    The exit code is that of the first worker that fails, or of an agent that is killed. With
    --survive it is 0 if one node ends well.
    """
    import sys
    from functools import partial

    from paceline.cluster.units import parse_duration
    from paceline.lab.faults import parse_faults
    from paceline.lab.lab import Lab, describe_emulation
    from paceline.lab.layout import lay_out, parse_slow
    from paceline.lab.timetable import LabEvent, LinkChange, parse_changes

    layout = lay_out(cluster=cluster, nodes=nodes, workers_per_node=workers, link=link)
    changes = parse_changes(change or [], layout)
    faults = parse_faults(fault or [], layout)
    happened: list[str] = []
    notes = frame.stderr_console()
    with Lab(layout, slow=parse_slow(slow or [], layout), emulation=emulation) as lab:

        def apply(change: LinkChange) -> None:
            lab.set_rate(change.rate_bytes_per_s, node=change.node)
            notes.print(f"lab: {change}", style="dim", soft_wrap=True)

        def tell(words: str) -> None:
            happened.append(words)
            notes.print(f"lab: {words}", style="dim", soft_wrap=True, markup=False)

        events = [LabEvent(at_s=each.at_s, act=partial(apply, each)) for each in changes]
        # With --json, standard output holds the object alone.
        job = lab.start(
            command,
            output=sys.stderr if json else None,
            events=events,
            faults=faults,
            on_fault=tell,
            survive=survive,
            silence_s=parse_duration(silence),
        )
        notes.print(f"lab: {describe_emulation(lab.emulation)}", style="dim", soft_wrap=True)
        code = job.wait()
        failure = job.first_failure()
    if failure is not None:
        notes.print(f"lab: {failure}", soft_wrap=True)
    if job.lost and code == 0:
        lost = ", ".join(f"node {node}" for node in job.lost)
        notes.print(f"lab: lost on the way: {lost}; the others went on", soft_wrap=True)
    if json:
        frame.print_json(
            {
                "exit_code": code,
                "first_failure": None if failure is None else vars(failure),
                "emulation": lab.emulation,
                "cluster": layout.to_dict(),
                "changes": [vars(each) for each in changes],
                "faults": [each.to_dict() for each in faults],
                "happened": happened,
                "lost_nodes": job.lost,
            }
        )
    raise typer.Exit(code)


@frame.command(app, "check", example="paceline lab check --nodes 3 --link 100mbit")
def check(
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    link: LinkOption = None,
    emulation: EmulationOption = "auto",
    json: frame.JsonFlag = False,
) -> None:
    """Measure each emulated link and compare it with the bandwidth that was asked for.

    The exit code is 1 if a link differs by more than 7 %.
    """
    from rich.table import Table
    from rich.text import Text

    from paceline.cluster.units import format_bandwidth
    from paceline.lab.check import TOLERANCE, check_links
    from paceline.lab.lab import choose_emulation, describe_emulation
    from paceline.lab.layout import lay_out

    layout = lay_out(cluster=cluster, nodes=nodes, link=link)
    kind = choose_emulation(emulation)
    notes = frame.stderr_console()
    with notes.status("measuring the links"):
        checks = check_links(layout, emulation=kind)
    notes.print(f"lab: {describe_emulation(kind)}", style="dim", soft_wrap=True)
    if json:
        links = [{**vars(one), "deviation": one.deviation} for one in checks]
        frame.print_json({"links": links, "tolerance": TOLERANCE, "emulation": kind})
    else:
        table = Table("link", "asked for", "measured", "deviation", "", title=f"links ({kind})")
        for one in checks:
            table.add_row(
                f"node {one.source} → node {one.target}",
                format_bandwidth(one.asked_bytes_per_s, bits=True),
                format_bandwidth(one.measured_bytes_per_s, bits=True),
                f"{one.deviation:+.1%}",
                "" if one.is_within_tolerance else Text("off", style="red"),
            )
        frame.console().print(table)
    raise typer.Exit(0 if all(one.is_within_tolerance for one in checks) else 1)
