"""What an import and a command load, seen in fresh interpreters."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

HEAVY = (
    "typer",
    "rich",
    "plotly",
    "pyroute2",
    "sklearn",
    "tensorboard",
    "wandb",
    "mlflow",
    "paceline.cli",
)
ROOT = Path(__file__).parents[1]
# Networks and data for examples, a name space of its own; and what needs another library.
OPEN_FOLDERS = {
    "paceline.zoo",
    *(
        f"paceline.integrations.{name}"
        for name in ("accelerate", "fabric", "huggingface", "lightning")
    ),
}


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
    assert loaded.isdisjoint({*HEAVY, "torch", "numpy", "pydantic", "paceline.lab"})


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


def documented_code() -> Iterator[tuple[str, str]]:
    """Every Python program in README, docs and examples, with where it is from."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(
            r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        )
        yield from ((page.name, block) for block in blocks)
    for script in sorted((ROOT / "examples").rglob("*.py")):
        yield script.name, script.read_text()


def imported_modules(code: str) -> Iterator[str]:
    for part in ast.walk(ast.parse(code)):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module is not None:
            yield part.module


def public_names(code: str) -> Iterator[str]:
    """The names that a program takes from the root: ``paceline.x``, ``from paceline import x``."""
    for part in ast.walk(ast.parse(code)):
        if isinstance(part, ast.ImportFrom) and part.module == "paceline":
            yield from (alias.name for alias in part.names)
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "paceline":
            yield part.attr


def test_docs_and_examples_import_from_the_root() -> None:
    deep = [
        (place, module)
        for place, code in documented_code()
        for module in imported_modules(code)
        if module.startswith("paceline.") and module not in OPEN_FOLDERS
    ]
    assert deep == []


def test_all_that_docs_and_examples_use_is_public() -> None:
    used = {name for _, code in documented_code() for name in public_names(code)}
    assert {"attach", "predict", "load_step"} <= used  # the search finds what there is
    assert used <= {*paceline.__all__, "zoo", "integrations"}
