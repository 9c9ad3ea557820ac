"""The Python reference has every public name; its pages say of which folders."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from docs.pages import ROOT


def load_hook() -> ModuleType:
    """What fills the pages when the site is built."""
    path = ROOT / "docs" / "hooks" / "public_names.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^<!-- public names of (\w+) -->$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(load_hook().names_by_folder())
