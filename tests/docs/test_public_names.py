"""The documentation and the examples use public names alone, and the reference has all of them."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import paceline
from docs.pages import ROOT, all_blocks

PUBLIC_MODULES = {"paceline", "paceline.zoo"}
SOURCES = {
    **{b.place: b.code for b in all_blocks() if b.language == "python"},
    **{
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "examples").glob("*.py"))
    },
}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def names_of_root(tree: ast.AST) -> Iterator[str]:
    """``paceline.NAME`` and ``from paceline import NAME``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "paceline":
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "paceline":
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("place", SOURCES)
def test_no_deep_imports(place: str) -> None:
    modules = set(imported_modules(ast.parse(SOURCES[place])))
    own = {module for module in modules if module.split(".")[0] == "paceline"}
    assert own <= PUBLIC_MODULES


@pytest.mark.parametrize("place", SOURCES)
def test_names_are_public(place: str) -> None:
    names = set(names_of_root(ast.parse(SOURCES[place]))) - {"zoo"}
    assert names <= set(paceline.__all__)
    for name in names:
        getattr(paceline, name)


def test_reference_has_every_public_name() -> None:
    hook = _load(ROOT / "docs" / "hooks" / "public_names.py")
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^<!-- public names of (\w+) -->$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(hook.names_by_folder())


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
