"""A race: the same training, entry after entry, on an emulated cluster or in the job it is in."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from paceline.cluster import Cluster, dump_cluster, load_cluster, parse_cluster
from paceline.lab.lab import Emulation, Lab
from paceline.lab.layout import DEFAULT_CLUSTER, Slow
from paceline.race.peers import PEERS
from paceline.race.racer import OnProgress, race_as_worker, use_own_gpu
from paceline.race.report import report_page
from paceline.race.task import RaceSettings, Task
from paceline.strategies import Strategy, name_and_options
from paceline.studies.page import write_page

RESULTS, REPORT = "race.json", "report.html"


@dataclass(frozen=True, kw_only=True)
class Race:
    """The outcome: a result for each entry, and what they ran on."""

    results: list[dict[str, Any]]
    cluster: Cluster
    """The emulated cluster; in a job on real machines the measured one."""
    measured: Cluster | None
    """The cluster as it was measured before the race; None if nothing was predicted."""
    emulation: Emulation | None
    """None on real machines."""
    settings: RaceSettings

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "results": self.results,
            "cluster": self.cluster.to_dict(),
            "measured_cluster": None if self.measured is None else self.measured.to_dict(),
            "emulation": self.emulation,
            "settings": asdict(self.settings),
        }

    def write(self, folder: Path) -> None:
        """Write ``race.json`` and the report, ``report.html``.

        Args:
            folder: Where they go.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS).write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        page = report_page(
            self.results, self.settings, cluster=self.cluster, emulation=self.emulation
        )
        write_page(page, folder / REPORT)


def run_race(
    cluster: Cluster,
    entries: Sequence[str | Strategy],
    settings: RaceSettings,
    *,
    folder: Path,
    slow: Slow | None = None,
    emulation: str = "auto",
    predict: bool = True,
    on_progress: OnProgress = lambda _state: None,
) -> Race:
    """Measure, predict and train every entry in turn on an emulated cluster.

    Args:
        cluster: The cluster to emulate.
        entries: What races: strategies, their names, baselines and other libraries' strategies.
        settings: What every entry trains, and for how long.
        folder: Where logs, ``race.json`` and ``report.html`` go.
        slow: Workers to slow down, as for :class:`~paceline.lab.lab.Lab`.
        emulation: How links are emulated, as for :class:`~paceline.lab.lab.Lab`.
        predict: Whether to measure the emulated cluster first and predict each entry's step.
        on_progress: Called with ``doing``, what the race does, and ``entries``, what is known of
            each by its name.
    """
    names, settings = _named(entries, settings)
    folder.mkdir(parents=True, exist_ok=True)
    # Whatever device the cluster has, the lab's workers compute on this machine's cores.
    base = load_cluster(DEFAULT_CLUSTER) if predict else None
    known: dict[str, dict[str, Any]] = {name: {} for name in names}

    def tell(state: dict[str, Any]) -> None:
        known.update(state["entries"])
        on_progress({**state, "entries": known})

    results, measured = [], None
    with Lab(cluster, slow=slow, emulation=emulation) as lab:
        for heat in _heats(names):
            # What other libraries' strategies take cannot be predicted.
            own_base = None if heat[0] in PEERS else base
            found, own = _run_heat(lab, heat, settings, own_base, folder, tell)
            results += found
            measured = own or measured
    in_order = sorted(results, key=lambda result: names.index(result["name"]))
    race = Race(
        results=in_order,
        cluster=cluster,
        measured=measured,
        emulation=lab.emulation,
        settings=settings,
    )
    race.write(folder)
    return race


def race_in_job(
    entries: Sequence[str | Strategy],
    settings: RaceSettings,
    *,
    folder: Path,
    base: Cluster | None = None,
    predict: bool = True,
    on_progress: OnProgress = lambda _state: None,
) -> Race | None:
    """Measure, predict and train every entry in turn in the job that this process is part of.

    All workers of the job call it, started by torchrun, srun or mpirun. The first one reports,
    writes the results and gets them; the others get None.

    Args:
        entries: What races: strategies, their names, baselines and other libraries' strategies.
        settings: What every entry trains, and for how long.
        folder: Where ``race.json`` and ``report.html`` go.
        base: A cluster with the workers' device; by default ``"local"``, with GPUs ``"dgx-h200"``.
            Their own speed is measured.
        predict: Whether to measure the job first and predict each entry's step.
        on_progress: As for :func:`run_race`.
    """
    from paceline.measure.links import measured_cluster
    from paceline.teams import find_workers
    from paceline.teams.backend import library_in_use

    names, settings = _named(entries, settings)
    use_own_gpu()
    workers = find_workers()
    if base is None:
        base = load_cluster("dgx-h200" if library_in_use() == "nccl" else "local")
    results, measured = race_as_worker(
        names, settings, base if predict else None, workers, on_progress
    )
    is_first = workers.world.rank == 0
    workers.close()
    if not is_first:
        return None
    race = Race(
        results=results,
        cluster=measured or measured_cluster(base, workers.node_sizes, [], name=base.name),
        measured=measured,
        # The job may be one that runs on a lab.
        emulation=cast("Emulation | None", os.environ.get("PACELINE_LAB")),
        settings=settings,
    )
    race.write(folder)
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


def _heats(names: Sequence[str]) -> list[list[str]]:
    """Entries by job: ours share one, others get their own, which they may not leave as it was."""
    own = [name for name in names if name not in PEERS]
    return [*([own] if own else []), *([name] for name in names if name in PEERS)]


def _run_heat(
    lab: Lab,
    names: list[str],
    settings: RaceSettings,
    base: Cluster | None,
    folder: Path,
    on_progress: OnProgress,
) -> tuple[list[dict[str, Any]], Cluster | None]:
    """Run some entries in one job on the lab; their results, and the measured cluster."""
    title = names[0] if names[0] in PEERS else "race"
    task_file, progress, result = (
        folder / f"{title}.{what}" for what in ("task", "progress", "result")
    )
    log = folder / f"{title}.log"
    task = Task(
        entries=names,
        settings=settings,
        base=None if base is None else dump_cluster(base),
        progress_file=str(progress),
        result_file=str(result),
    )
    task_file.write_text(task.to_json())

    def look() -> None:
        with contextlib.suppress(FileNotFoundError):
            on_progress(json.loads(progress.read_text()))

    with log.open("w") as output:
        racer = [sys.executable, "-m", "paceline.race.racer", str(task_file)]
        code = lab.start(racer, output=output).wait(on_poll=look)
    look()
    if code != 0:
        raise RuntimeError(f"the race failed with exit code {code}; its output is in {log}")
    outcome = json.loads(result.read_text())
    for leftover in (progress, result, task_file):
        leftover.unlink()
    text = outcome["measured"]
    return outcome["results"], None if text is None else parse_cluster(text, "the measured cluster")
