"""``paceline measure host``: what this machine's processor would be as a host."""

from __future__ import annotations

import typer

from paceline.cli import frame


def register(app: typer.Typer) -> None:
    """Add the command to `paceline measure`."""
    frame.command(
        app,
        "host",
        example="paceline measure host\npaceline measure host --json",
    )(host)


def host(json: frame.JsonFlag = False) -> None:
    """Measure how fast this machine's processor issues operators; takes seconds and no GPU.

    Steps that a small batch or many small layers make short are limited by the host. The speed is
    relative to the host of the H200's profile; write it as host into a node of a cluster's file.
    """
    from dataclasses import asdict

    from paceline.measure.host_speed import measure_host_speed

    found = measure_host_speed()
    if json:
        frame.print_json(asdict(found))
        return
    frame.console().print(
        f"{found.cpu} issues an operator without a kernel in {1e6 * found.call_s:.2g} us: "
        f"{found.speed:.2f} times as fast as the host of the H200's profile (the operators "
        f"disagree by {found.spread:.0%}); closest is {found.nearest}",
        soft_wrap=True,
    )
    frame.console().print(
        f"In a cluster's file, for its nodes:\n[[node]]\nhost = {found.speed:.2f}",
        soft_wrap=True,
    )
