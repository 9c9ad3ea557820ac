"""What an import and a command load, seen in fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import paceline

HEAVY = (
    "typer",
    "rich",
    "plotly",
    "pyroute2",
    "sklearn",
    "tensorboard",
    "paceline.cli",
    "paceline.lab",
)


def loaded_after(statements: str) -> set[str]:
    """The names of all modules in a new interpreter that ran the statements."""
    script = (
        f"import json, sys\n{statements}\nsys.stderr.write('\\n' + json.dumps([*sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_import_paceline_stays_light() -> None:
    loaded = loaded_after("import paceline")
    assert "paceline.version" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_public_names_do_not_load_commands() -> None:
    loaded = loaded_after("import paceline\nfor name in paceline.__all__: getattr(paceline, name)")
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["lab", "--help"], ["race", "--help"], ["cluster", "list"]]
)
def test_help_and_clusters_answer_without_torch(arguments: list[str]) -> None:
    loaded = loaded_after(
        f"from paceline.cli import frame, main\nassert frame.run(main.app, {arguments!r}) == 0"
    )
    assert "paceline.cli.main" in loaded
    assert "torch" not in loaded


def test_every_public_name_resolves() -> None:
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    assert dir(paceline) == sorted(paceline.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'attatch'"):
        _ = paceline.attatch
