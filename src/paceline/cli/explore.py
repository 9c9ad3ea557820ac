"""``paceline explore``: a local page with sliders, whose curves move at once."""

from __future__ import annotations

import gc
import json as json_module
import os
import sys
from typing import Annotated

import typer

from paceline.cli import frame, step_options
from paceline.cli.options import names_in


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "explore",
        example="paceline explore resnet50 --cluster dgx-h200 --precision bf16\n"
        "paceline explore my_model.py:make --cluster my.toml --strategy sync,diloco\n"
        "paceline explore mlp --port 8000 --no-browser --json",
    )(explore)


@step_options.spread
def explore(
    model: step_options.Model,
    cluster: Annotated[
        str, typer.Option("--cluster", help="The cluster to begin with, or a TOML file.")
    ] = "dgx-h200",
    strategy: Annotated[
        str, typer.Option("--strategy", help="Strategies, separated by commas, or 'all'.")
    ] = "sync,local-sgd,daso",
    workers: Annotated[
        str | None, typer.Option("--workers", help="Numbers of workers, as 1:4096.")
    ] = None,
    batch: step_options.Batch = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    model_file: step_options.ModelFile = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0: any free one.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open nothing.")
    ] = False,
    json: frame.JsonFlag = False,
) -> None:
    """Open a page with sliders for batch, device, links and workers; Ctrl-C ends it.

    It listens on loopback only. The first strategy is there after a few seconds,
    the others follow.
    """
    frame.collect_rarely()

    from paceline.strategies import comparable_strategy_names
    from paceline.studies.explorer import Explorer
    from paceline.studies.explorer.server import ExplorerServer, serve

    step = described.load(model, batch=batch)
    explorer = Explorer(
        step,
        cluster=cluster,
        strategies=comparable_strategy_names()
        if strategy == "all"
        else names_in(strategy, "--strategy"),
        workers=workers,
        kernel_model=model_file,
    )
    server = ExplorerServer(explorer, port)  # a port that is taken is told before work begins
    with frame.progress() as progress:
        explorer.start(progress)
    gc.freeze()  # an answer would wait for a search through all that

    def ready(url: str) -> None:
        if json:
            # One line: whoever reads it need not wait for the end, which comes with Ctrl-C.
            sys.stdout.write(json_module.dumps({"url": url, "model": explorer.title}) + "\n")
        else:
            frame.say(f"{explorer.title}: {url}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if not no_browser:
            _open(url)

    if not serve(server, ready):
        # A job is in the middle of torch's code, which aborts when the interpreter goes first.
        sys.stdout.flush()
        os._exit(0)


def _open(url: str) -> None:
    """Show the page, where there is a screen: a browser for terminals would take this one over."""
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
