"""Each folder imports only from itself and from the folders above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import paceline

# Top first. CONTRIBUTING.md has the same list, with what each folder is.
ORDER = (
    "zoo",
    "cluster",
    "steps",
    "kernels",
    "collectives",
    "teams",
    "traces",
    "strategies",
    "train",
    "rehearse",
    "measure",
    "auto",
    "studies",
    "lab",
    "race",
    "integrations",
    "doctor",
    "cli",
)
# Folders that may know less than the order would let them.
ONLY = {"teams": ("cluster", "teams")}
# Root files import nothing of the folders, so anybody may import them.
ROOT_FILES = ("ending", "reading", "suggestion", "version")

PACKAGE = Path(paceline.__file__).parent
# The package's own face, the root files, gathers names from everywhere.
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def imported_modules(tree: ast.AST, package: str) -> list[tuple[int, str]]:
    """Line and dotted name of every import, wherever it stands: also in functions and ifs."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from paceline import lab` names its folder only after the import.
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def violations(source: str, folder: str, path: str = "made_up.py") -> list[str]:
    """What a file of ``folder`` imports that it may not."""
    package = ".".join(["paceline", folder, *Path(path).parent.parts[1:]])
    above = ONLY.get(folder, ORDER[: ORDER.index(folder) + 1])
    allowed = (*above, *ROOT_FILES)
    return [
        f"{path}:{line}: {folder} may not import {name}"
        for line, name in imported_modules(ast.parse(source), package)
        if name.split(".")[0] == "paceline" and name.partition(".")[2].split(".")[0] not in allowed
    ]


def test_every_folder_has_its_place_in_the_order() -> None:
    folders = {path.relative_to(PACKAGE).parts[0] for path in SOURCES}
    assert folders <= set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_up(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    assert violations(path.read_text("utf-8"), relative.parts[0], str(relative)) == []


def imported_folders() -> dict[str, list[str]]:
    """What each folder imports of the others, in the order of the folders."""
    found: dict[str, set[str]] = {folder: set() for folder in ORDER}
    for path in SOURCES:
        folder = path.relative_to(PACKAGE).parts[0]
        for _, name in imported_modules(ast.parse(path.read_text("utf-8")), f"paceline.{folder}"):
            first, _, rest = name.partition(".")
            if first == "paceline":
                found[folder].add(rest.partition(".")[0])
    return {
        folder: [each for each in ORDER if each in names - {folder}]
        for folder, names in found.items()
    }


def test_the_map_in_contributing_matches_the_code() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    told = dict(re.findall(r"^(\w+) +<- (.*)$", text, flags=re.MULTILINE))
    assert {folder: names for folder, names in imported_folders().items() if names} == {
        folder: names.split() for folder, names in told.items()
    }
    listed = re.findall(r"^  (\w+)/ ", text, flags=re.MULTILINE)
    assert tuple(listed) == ORDER


@pytest.mark.parametrize(
    "source",
    [
        "import paceline.lab",
        "import os, paceline.cli.main as main",
        "from paceline.lab.lab import Lab",
        "from paceline import lab",
        "from .. import lab",
        "from ..lab import job",
        "def f() -> None:\n    from paceline.train import attach",
        "if TYPE_CHECKING:\n    from paceline.strategies import Strategy",
        # Above teams, but none of their business.
        "from paceline.zoo import build_model",
        # Public names come from everywhere, so they are below everybody.
        "import paceline",
        "from paceline import Cluster",
    ],
)
def test_the_check_catches_a_violation(source: str) -> None:
    assert len(violations(source, "teams")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed",
        "from paceline.teams.team import Team",
        "from .team import Team",
        "from . import team",
        "from ..cluster import Cluster",
        "from paceline.version import __version__",
    ],
)
def test_the_check_lets_the_right_ones_pass(source: str) -> None:
    assert violations(source, "teams") == []
