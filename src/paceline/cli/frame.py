"""What every command shares: ``--json`` and ``--debug``, output, and errors as one sentence."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli.terminal import Screen, note, say

_OBJECTS_BETWEEN_COLLECTIONS = 500_000

_LONGEST_SENTENCE = 2000
_MOST_DIMENSIONS = 8

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
NOBODY_READS = 141
"""As a shell has it for a program that wrote into a closed pipe."""

__all__ = ["note", "say"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def console() -> Screen:
    """A console for tables and pictures on standard output."""
    return Screen()


def stderr_console() -> Screen:
    """A console for progress and notes, so that standard output stays clean for ``--json``."""
    return Screen(stderr=True)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for long work: report(what, done, total)."""
    screen = stderr_console()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,  # a log or a pipe wants no bar
    )
    with bar:
        task = bar.add_task("starting", total=1)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report


def collect_rarely() -> None:
    """Look for garbage less often: imports and captures make a million objects that stay.

    Looking through them time and again took a seventh of a prediction's time.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def parse_shape(text: str) -> tuple[int, ...]:
    """The sizes of one sample, written as 3x224x224."""
    parts = text.lower().split("x")
    # isdecimal() and ASCII: "²" is a digit to Python, and no number.
    are_sizes = all(each.isascii() and each.isdecimal() and len(each) < 12 for each in parts)
    if not are_sizes or not all(int(each) > 0 for each in parts) or len(parts) > _MOST_DIMENSIONS:
        raise ValueError(f"--input {text[:80]} is not a shape: write it as 3x224x224.")
    return tuple(map(int, parts))


def print_json(value: Any) -> None:
    """Print one JSON object, with no terminal markup, on standard output."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError as problem:  # NaN and Infinity, which no JSON parser but Python's reads
        raise ValueError(f"the result has a figure that is not finite: {problem}") from None
    sys.stdout.write(text + "\n")


def new_app(*, help_text: str) -> typer.Typer:
    """A typer application with paceline's settings."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(
    app: typer.Typer, name: str, *, example: str, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command on ``app``; its help ends with ``example``, one shell line each."""
    lines = "\n\n".join(f"  [bold]$[/bold] {line}" for line in example.splitlines())
    epilog = (
        f"[bold]Example[/bold]\n\n{lines}\n\n"
        "[dim]--debug, with any command, shows the traceback of an error.[/dim]"
    )
    return app.command(name, epilog=epilog, **settings)


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the application and return its exit code; errors become one sentence on stderr."""
    arguments, debug = _without_debug(arguments)
    try:
        result = app(arguments, standalone_mode=False, prog_name="paceline")
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    except BrokenPipeError:
        return _end_unread()
    except Exception as problem:
        if debug:
            traceback.print_exc()
        return _say(problem)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _end_unread()
    except OSError as problem:  # a full disk
        return _say(problem)
    return result if isinstance(result, int) else 0


def _end_unread() -> int:
    """Whoever read our output, such as ``head``, has had enough: no news, and no traceback."""
    # The interpreter flushes once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NOBODY_READS


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out, wherever it stands before ``--``: what follows is another program's."""
    own_end = arguments.index("--") if "--" in arguments else len(arguments)
    own = [argument for argument in arguments[:own_end] if argument != "--debug"]
    return own + list(arguments[own_end:]), len(own) < own_end


def _say(problem: Exception) -> int:
    is_bad_input = isinstance(problem, (typer.TyperException, ValueError, OSError, ImportError))
    sentence = (
        problem.format_message() if isinstance(problem, typer.TyperException) else str(problem)
    )
    # A bare group has printed its help, and has nothing to add.
    if sentence or not is_bad_input:
        words = " ".join((sentence or repr(problem)).split())
        # A value of megabytes is quoted in part.
        cut = "…" if len(words) > _LONGEST_SENTENCE else ""
        note(f"Error: {words[:_LONGEST_SENTENCE]}{cut}")
    return BAD_INPUT if is_bad_input else FAILED
