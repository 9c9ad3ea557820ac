"""``paceline study`` on the command line: what its tables say."""

from __future__ import annotations

import json

import pytest

from paceline.cli import frame, main

STUDY = ("study", "mlp", "--cluster", "lab-2x2", "--strategy", "sync", "--scaling", "weak")


def run(*arguments: str) -> int:
    return frame.run(main.app, [*STUDY, *arguments])


def test_large_numbers_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--workers", "4:1000000", "--batch", "32") == 0
    shown = capsys.readouterr().out
    assert "1,000,0" in shown and "e+" not in shown


def test_a_map_takes_axes_as_options_spell_them(capsys: pytest.CaptureFixture[str]) -> None:
    maps = (
        "--map",
        "arithmetic,memory-bandwidth",
        "--arithmetic",
        "1",
        "--memory-bandwidth",
        "1:2",
    )
    assert run("--workers", "4", "--batch", "32", "--link", "1gbit", *maps, "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert "arithmetic*memory_bandwidth" in {point["sweep"] for point in points}


def test_names_may_have_spaces_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--workers", "4", "--batch", "32", "--link", "1gbit", "--json")
    assert run("--strategy", "sync, local-sgd,", *more) == 0
    assert json.loads(capsys.readouterr().out)["strategies"] == ["sync", "local-sgd"]
    assert run("--strategy", " ,", *more) == 2
    assert "--strategy names nothing" in capsys.readouterr().err
