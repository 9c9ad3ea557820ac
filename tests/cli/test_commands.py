"""What every command has in common, found by walking the application."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from paceline.cli import frame, main
from paceline.version import __version__


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path: ("lab", "run"), …."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(main.app)))

BAD_INPUT = [
    ("nosuchcommand",),
    ("--nosuchoption",),
    ("lab", "nosuchcommand"),
    ("cluster", "show", "nosuchcluster"),
    ("cluster", "check", "nosuchfile.toml"),
    ("lab", "run"),
    ("lab", "run", "--", "nosuchprogram"),
    ("lab", "run", "--nodes", "0", "--", "true"),
    ("lab", "run", "--nodes", "two", "--", "true"),
    ("lab", "run", "--workers", "0", "--", "true"),
    ("lab", "run", "--workers", "2,1", "--nodes", "3", "--", "true"),
    ("lab", "run", "--link", "100 Mb", "--", "true"),
    ("lab", "run", "--link", "100gbit", "--", "true"),
    ("lab", "run", "--slow", "2:0=2", "--", "true"),
    ("lab", "run", "--slow", "fast", "--", "true"),
    ("lab", "run", "--emulation", "hardware", "--", "true"),
    ("lab", "run", "--cluster", "nosuchcluster", "--", "true"),
    ("lab", "check", "--nodes", "1"),
    ("lab", "check", "--cluster", "dgx-h100"),
    ("lab", "check", "--link", "fast"),
    ("measure", "links"),
    ("measure", "links", "--out", "x.toml"),
    ("measure", "links", "--out", "x.toml", "--largest", "64 KiB"),
    ("measure", "links", "--out", "x.toml", "--cluster", "nosuchcluster"),
    ("measure", "links", "--out", "x.toml", "--workers", "2", "--model", "nosuchmodel"),
    ("measure", "links", "--out", "x.toml", "--workers", "2", "--model", "mlp", "--input", "3xq"),
    ("race", "--strategies", "nosuchstrategy"),
    ("race", "--strategies", ","),
    ("race", "--model", "nosuchmodel"),
    ("race", "--model", "resnet50"),
    ("race", "--data", "nosuchdata"),
    ("race", "--model", "small-gpt", "--data", "digits"),
    ("race", "--epochs", "0"),
    ("race", "--epochs", "1", "--batch", "1000"),
    ("race", "--target", "2"),
    ("race", "--slow", "0:2=2"),
    ("race", "--link", "100gbit"),
]


def test_the_walk_finds_commands() -> None:
    assert {("cluster", "list"), ("lab", "run"), ("lab", "check"), ("race",)} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_prints_json_if_asked(path: tuple[str, ...]) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    assert "--json" in options


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(main.app, [*path, "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert COMMANDS[path].help.split("\n\n")[0].split()[0] in words
    assert f"$ paceline {' '.join(path)}" in words
    assert "--debug" in words


@pytest.mark.parametrize("arguments", BAD_INPUT, ids=" ".join)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(main.app, list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "options", [("--link", "1gbit"), ("--emulation", "software"), ("--cluster", "nosuchcluster")]
)
def test_a_race_in_a_job_takes_no_option_of_a_lab(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert frame.run(main.app, ["race", *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert options[0] in err or options[1] in err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "cluster", "show", "no"], ["cluster", "show", "no", "--debug"]):
        assert frame.run(main.app, arguments) == 2
        err = capsys.readouterr().err
        assert "Traceback (most recent call last)" in err
        assert err.splitlines()[-1].startswith("Error: ")


def test_debug_after_two_dashes_is_another_programs() -> None:
    got: list[str] = []
    app = frame.new_app(help_text="A command that only listens.")

    @app.command()
    def listen(words: list[str]) -> None:
        got.extend(words)
        raise ValueError("heard enough")

    assert frame.run(app, ["--", "python", "train.py", "--debug"]) == 2
    assert got == ["python", "train.py", "--debug"]


def test_a_failure_that_is_not_the_users_fault_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = frame.new_app(help_text="A command that fails.")

    @app.command()
    def fail() -> None:
        raise RuntimeError("the measurement failed\nin two lines")

    assert frame.run(app, []) == 1
    assert capsys.readouterr().err == "Error: the measurement failed in two lines\n"


def test_an_interrupt_is_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    app = frame.new_app(help_text="A command that is interrupted.")

    @app.command()
    def wait() -> None:
        raise KeyboardInterrupt

    assert frame.run(app, []) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_installed_command() -> None:
    command = [sys.executable, "-m", "paceline"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (version.returncode, version.stdout) == (0, f"paceline {__version__}\n")
    bad = subprocess.run([*command, "cluster", "show", "no"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    bare = subprocess.run(command, capture_output=True, text=True)
    assert "Usage: paceline" in bare.stdout + bare.stderr
