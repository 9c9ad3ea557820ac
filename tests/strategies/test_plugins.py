"""Strategies of other packages, installed for real: folders with metadata on the import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.race.entry import entry_names
from paceline.strategies import make_strategy, name_and_options, strategy_class, strategy_names
from paceline.strategies.registry import _STRATEGIES

_GOOD = """
import paceline

class Lonely(paceline.Strategy):
    '''Trains alone.

    Args:
        period: Steps.

    '''

    summary = "train alone"

    def __init__(self, *, period: int = 3) -> None:
        super().__init__()
        self.period = period
"""


def _install(folder: Path, name: str, source: str, entries: dict[str, str]) -> None:
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[paceline.strategies]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(_STRATEGIES)
    yield tmp_path
    _STRATEGIES.clear()
    _STRATEGIES.update(before)


def test_a_package_brings_a_strategy(site: Path) -> None:
    _install(site, "good_plugin", _GOOD, {"lonely": "good_plugin:Lonely"})
    assert "good_plugin" not in sys.modules
    strategy_class("sync")
    assert "good_plugin" not in sys.modules, "built-in names need no other package"
    made = make_strategy("lonely", period=5)
    assert name_and_options(made) == ("lonely", {"period": 5})
    assert "lonely" in strategy_names()
    assert "lonely" in entry_names()
    del _STRATEGIES["lonely"]
    assert name_and_options(made) == ("lonely", {"period": 5}), "an object's name is found too"


def test_a_broken_package_is_named_and_leaves_others_alone(site: Path) -> None:
    _install(site, "bad_plugin", "import no_such_thing", {"bad": "bad_plugin:Bad"})
    _install(site, "odd_plugin", "odd = 3", {"odd": "odd_plugin:odd", "sync": "odd_plugin:odd"})
    with pytest.warns(RuntimeWarning) as warned:
        names = strategy_names()
    assert "sync" in names
    assert not {"bad", "odd"} & set(names)
    said = sorted(str(each.message) for each in warned)
    assert said[0].startswith(
        "the strategy 'bad' of the package bad_plugin (bad_plugin:Bad) cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_thing'"
    )
    assert "'odd' of the package odd_plugin (odd_plugin:odd) is not a subclass" in said[1]
    with pytest.raises(ValueError, match="'bad' of the package bad_plugin"):
        make_strategy("bad")
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="did you mean 'daso'"):
        strategy_class("dasso")
    assert strategy_class("sync").__name__ == "Sync"


def test_a_built_in_name_stays_what_it_is(site: Path) -> None:
    _install(site, "bold_plugin", _GOOD, {"sync": "bold_plugin:Lonely"})
    with pytest.warns(RuntimeWarning, match="'sync' of another package .bold_plugin:Lonely. has"):
        strategy_names()
    assert strategy_class("sync").__name__ == "Sync"
