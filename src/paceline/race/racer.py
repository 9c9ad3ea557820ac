"""One worker of a race: ``python -m paceline.race.racer TASK.json``.

Measures the job, predicts each entry, and then trains one entry after another.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.cluster import Cluster, dump_cluster, parse_cluster
from paceline.ending import end_quickly
from paceline.race.forecast import forecast, measure_job
from paceline.race.task import RaceSettings, Task, count_steps
from paceline.race.training import TrainingRecord, train_entry
from paceline.teams import Workers, find_workers
from paceline.teams.launcher import find_place
from paceline.zoo import load_data_for

OnProgress = Callable[[dict[str, Any]], None]
"""Called with ``doing``, what the race does, and ``entries``: what is known of each by its name."""


def race_as_worker(
    entries: list[str],
    settings: RaceSettings,
    base: Cluster | None,
    workers: Workers,
    on_progress: OnProgress,
) -> tuple[list[dict[str, Any]], Cluster | None]:
    """Measure, predict and train. All workers of a job call it; the first one's answer counts.

    Args:
        entries: What races.
        settings: What every entry trains.
        base: The cluster whose device the workers are compared with; None: no prediction.
        workers: The teams of this job.
        on_progress: Called on the first worker, again and again.

    Returns:
        A result for each entry, and the measured cluster.
    """
    is_first = workers.world.rank == 0
    known: dict[str, dict[str, Any]] = {name: {} for name in entries}

    def tell(doing: str) -> None:
        if is_first:
            on_progress({"doing": doing, "entries": known})

    data = load_data_for(settings.model, settings.data, settings.seed)
    num_steps = count_steps(settings, len(data.train), workers.world.size)
    measured: Cluster | None = None
    if base is not None:
        tell("measuring the links and the workers")
        measured = measure_job(workers, base, settings)
        for name in entries if is_first else []:
            tell(f"predicting {name}")
            expected = forecast(name, settings, measured, num_steps)
            known[name]["prediction"] = None if expected is None else asdict(expected)
        workers.world.barrier()  # the others wait while the first one predicts
    results = []
    for name in entries:

        def on_step(record: TrainingRecord, name: str = name) -> None:
            known[name] |= record.news()
            tell(f"training {name}")

        result = train_entry(name, settings, data, num_steps, workers, on_step)
        results.append({**result, "prediction": known[name].get("prediction")})
    return results, measured


def use_own_gpu() -> None:
    """Make this worker's GPU the current one, where there are GPUs."""
    if torch.cuda.is_available():
        place = find_place(os.environ)
        torch.cuda.set_device(place.gpu_index % torch.cuda.device_count())


def main() -> None:
    """Run one task as one of its workers."""
    end_quickly()
    task = Task.from_json(Path(sys.argv[1]).read_text())
    use_own_gpu()
    workers = find_workers()

    def on_progress(state: dict[str, Any]) -> None:
        """A small file, replaced as a whole."""
        partial = Path(task.progress_file + ".partial")
        partial.write_text(json.dumps(state))
        partial.replace(task.progress_file)

    base = None if task.base is None else parse_cluster(task.base, "the race's cluster")
    results, measured = race_as_worker(task.entries, task.settings, base, workers, on_progress)
    if workers.world.rank == 0:
        text = None if measured is None else dump_cluster(measured)
        Path(task.result_file).write_text(json.dumps({"results": results, "measured": text}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
