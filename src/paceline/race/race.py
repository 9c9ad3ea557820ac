"""A race: the same training, entry after entry, on one emulated cluster."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.cluster import Cluster
from paceline.lab.lab import Emulation, Lab
from paceline.lab.layout import Slow
from paceline.race.task import RaceSettings, Task
from paceline.strategies import Strategy, name_and_options

# Called with an entry's name and what its first worker last reported.
OnProgress = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Race:
    """The outcome: a result for each entry, and what they ran on."""

    results: list[dict[str, Any]]
    cluster: Cluster
    emulation: Emulation
    settings: RaceSettings

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "results": self.results,
            "cluster": self.cluster.to_dict(),
            "emulation": self.emulation,
            "settings": asdict(self.settings),
        }


def run_race(
    cluster: Cluster,
    entries: Sequence[str | Strategy],
    settings: RaceSettings,
    *,
    folder: Path,
    slow: Slow | None = None,
    emulation: str = "auto",
    on_progress: OnProgress = lambda _name, _news: None,
) -> Race:
    """Train every entry in turn on an emulated cluster.

    Args:
        cluster: The cluster to emulate.
        entries: What races: strategies, their names, baselines and other libraries' strategies.
        settings: What every entry trains, and for how long.
        folder: Where logs and ``race.json`` go.
        slow: Workers to slow down, as for :class:`~paceline.lab.lab.Lab`.
        emulation: How links are emulated, as for :class:`~paceline.lab.lab.Lab`.
        on_progress: Called with an entry's name and what its first worker last reported.
    """
    names, settings = _named(entries, settings)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    with Lab(cluster, slow=slow, emulation=emulation) as lab:
        for name in names:
            results.append(_run_entry(lab, name, settings, folder, on_progress))
    race = Race(results=results, cluster=cluster, emulation=lab.emulation, settings=settings)
    (folder / "race.json").write_text(json.dumps(race.to_dict(), indent=2) + "\n")
    return race


def _named(
    entries: Sequence[str | Strategy], settings: RaceSettings
) -> tuple[list[str], RaceSettings]:
    """Strategy objects as names and options: the workers are other processes."""
    names, options = [], dict(settings.options)
    for entry in entries:
        if isinstance(entry, Strategy):
            name, own = name_and_options(entry)
            options[name] = own
        else:
            name = entry
        if name in names:
            raise ValueError(f"{name} races twice; give each entry once")
        names.append(name)
    return names, replace(settings, options=options)


def _run_entry(
    lab: Lab, name: str, settings: RaceSettings, folder: Path, on_progress: OnProgress
) -> dict[str, Any]:
    progress, result = folder / f"{name}.progress.json", folder / f"{name}.result.json"
    task_file, log = folder / f"{name}.task.json", folder / f"{name}.log"
    task = Task(entry=name, settings=settings, progress_file=str(progress), result_file=str(result))
    task_file.write_text(task.to_json())

    def look() -> None:
        with contextlib.suppress(FileNotFoundError):
            on_progress(name, json.loads(progress.read_text()))

    with log.open("w") as output:
        racer = [sys.executable, "-m", "paceline.race.racer", str(task_file)]
        code = lab.start(racer, output=output).wait(on_poll=look)
    if code != 0:
        raise RuntimeError(f"{name} failed with exit code {code}; its output is in {log}")
    outcome: dict[str, Any] = json.loads(result.read_text())
    on_progress(name, {"steps": outcome["num_steps"], "accuracy": outcome["accuracy"]})
    for leftover in (progress, result, task_file):
        leftover.unlink()
    return outcome
