"""``paceline meet``: where the nodes of a job that outlives them find each other."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import frame


def register(app: typer.Typer) -> None:
    """Add the command."""
    frame.command(
        app,
        "meet",
        example="paceline meet --nodes 3 --listen 10.0.0.5:29500\n"
        "PACELINE_MEETING=10.0.0.5:29500 PACELINE_NODE=0 torchrun --standalone "
        "--nproc-per-node 2 train.py",
    )(meet)


def meet(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The address to listen at.")
    ] = "127.0.0.1:29500",
    silence: Annotated[
        str, typer.Option("--silence", help="A node without a sign of life for so long is lost.")
    ] = "10s",
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long nodes wait for one that lives.")
    ] = "600s",
    json: frame.JsonFlag = False,
) -> None:
    """Be the place where nodes meet that may be lost and come back: attach(survive=True).

    Run it on a machine that stays, for as long as the job lasts. It needs no GPU and hardly any
    time. A node's workers find it by PACELINE_MEETING, and say which node they are by
    PACELINE_NODE.
    """
    import threading

    from paceline.cluster.units import parse_duration
    from paceline.teams.meeting import MeetingServer, MeetingSettings

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {listen} is not understood; write HOST:PORT")
    settings = MeetingSettings(
        num_nodes=nodes, silence_s=parse_duration(silence), timeout_s=parse_duration(timeout)
    )
    with MeetingServer(settings, host=host.strip("[]"), port=int(port)) as server:
        if json:
            frame.print_json({"address": server.address, **vars(settings)})
        else:
            frame.console().print(
                f"{nodes} nodes can meet at {server.address}; set PACELINE_MEETING to it",
                soft_wrap=True,
            )
        threading.Event().wait()
