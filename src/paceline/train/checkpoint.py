"""Save and load a whole job, so that a run can be killed at any moment and resumed.

All workers take each step of this together (:class:`Crew`), and one that fails is named by all.
Saving writes every worker's file, then the markers that declare the save complete, and only then
removes the save before.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.train import saves
from paceline.train.contents import Contents
from paceline.train.crew import CheckpointError, Crew
from paceline.version import __version__

_FORMAT = 1


def save_checkpoint(folder: str | Path, contents: Contents) -> None:
    """Write the next save to ``folder``; the one before stays until this one is complete."""
    crew, target = Crew(contents.workers), Path(folder)

    def look() -> dict[str, Any]:
        saves.make_folder(target)
        return {"found": list(saves.find_saves(target).items()), "identifier": uuid.uuid4().hex}

    answers = crew.share(look, task=f"save to {target}")
    numbers, markers = _numbers_and_markers([answer["found"] for answer in answers])
    number = 1 + max(numbers, default=0)
    identifier = answers[0]["identifier"]
    # What an interrupted run left behind. It may need the room that this save will take.
    _remove(target, numbers - markers.keys())

    path = saves.worker_path(target, number, crew.rank)
    marker = {
        "format": _FORMAT,
        "number": number,
        "identifier": identifier,
        "paceline": __version__,
        "torch": torch.__version__,
        "nodes": crew.nodes,
    }

    def write() -> str | None:
        saves.write_state(path, {"identifier": identifier, **contents.state()})
        return contents.fingerprint()

    def mark() -> None:
        # One worker of each node: nodes need not share a disk.
        if crew.leads_node:
            described = contents.describe() | {"differing": _differing(fingerprints)}
            saves.write_marker(target, number, marker | described, rank=crew.rank)

    try:
        fingerprints = crew.share(write, task=f"save to {path}")
        crew.share(mark, task=f"complete {path.parent}")
    except CheckpointError:
        _remove(target, {number})
        raise
    _remove(target, numbers)


def load_checkpoint(folder: str | Path, contents: Contents, *, missing_ok: bool) -> None:
    """Take over the newest complete save in ``folder``; none may be fine."""
    crew, target = Crew(contents.workers), Path(folder)
    seen = crew.share(lambda: list(saves.find_saves(target).items()), task=f"read {target}")
    numbers, markers = _numbers_and_markers(seen)
    if not markers:
        if missing_ok:
            return
        raise CheckpointError(
            f"there is no complete checkpoint in {target}: "
            + (
                f"{saves.save_path(target, max(numbers)).name} was interrupted before every "
                "worker had written its file"
                if numbers
                else "pace.save(folder) has not written any there"
            )
        )
    path = _choose(target, markers, contents, crew)
    state: dict[str, Any] = {}

    def read() -> None:
        state.update(saves.read_state(path, contents.device))
        contents.check(state)

    task = f"load {path}"
    crew.share(read, task=task)
    # The strategy first: it may still refuse, and then nobody's model has changed.
    crew.share(lambda: contents.load_strategy(state), task=task)
    crew.share(lambda: contents.load_training(state), task=task)


def _choose(
    target: Path, markers: Mapping[int, Mapping[str, Any]], contents: Contents, crew: Crew
) -> Path:
    """This worker's file of the newest save of which every worker has one."""
    problems: list[CheckpointError] = []
    for number in sorted(markers, reverse=True):
        marker = markers[number]
        source = _source_rank(marker, contents, crew)
        path = saves.worker_path(target, number, source)
        try:
            crew.share(partial(_check_file, path, marker), task=f"load {path}")
        except CheckpointError as problem:
            problems.append(problem)
            continue
        if problems and crew.rank == 0:
            warnings.warn(
                f"{path.parent} is loaded, because the save after it is not complete: "
                f"{problems[0]}",
                RuntimeWarning,
                stacklevel=4,
            )
        return path
    raise problems[0]


def _check_file(path: Path, marker: Mapping[str, Any]) -> None:
    if saves.read_identifier(path) != marker["identifier"]:
        raise ValueError("the file is of another save than its folder's complete.json")


def _source_rank(marker: Mapping[str, Any], contents: Contents, crew: Crew) -> int:
    """Whose file this worker loads: its own, or on another layout the first worker's."""
    if marker.get("format") != _FORMAT:
        raise CheckpointError(
            f"the checkpoint was written by paceline {marker.get('paceline')} in format "
            f"{marker.get('format')}, and paceline {__version__} reads format {_FORMAT}"
        )
    saved, own = marker["strategy"], contents.strategy_name
    if saved != own:
        if own is None:
            raise CheckpointError(
                f"the checkpoint holds the state of {saved}, and enabled=False attaches no "
                f"strategy; resume it with {saved}"
            )
        if saved is None:
            raise CheckpointError(
                f"the checkpoint was saved with enabled=False and holds no strategy's state, and "
                f"{own} is attached; resume it with enabled=False"
            )
        raise CheckpointError(f"the checkpoint holds {saved}, and {own} is attached")
    if marker["nodes"] == crew.nodes:
        return crew.rank
    if marker["differing"] is None:
        return 0
    raise CheckpointError(
        f"the checkpoint was saved on {_layout_in_words(marker['nodes'], crew.nodes)}, and this "
        f"job has {_layout_in_words(crew.nodes, marker['nodes'])}; under {own} its workers had "
        f"different {marker['differing']}: resume on the same layout, or start a new run from a "
        "model that was saved after pace.finish()"
    )


def _differing(fingerprints: Sequence[str | None]) -> str | None:
    """What is not the same on all workers, if anything."""
    if None in fingerprints:
        return "models between exchanges"
    return "buffers" if len(set(fingerprints)) > 1 else None


def _layout_in_words(nodes: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> str:
    sizes = [len(ranks) for ranks in nodes]
    count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    if sizes == [len(ranks) for ranks in other]:
        return f"{count} with the ranks {' and '.join(str(list(ranks)) for ranks in nodes)}"
    if len(set(sizes)) > 1:
        return f"{count} with {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} workers"
    plural = "s" if sizes[0] > 1 else ""
    return f"{count} with {sizes[0]} worker{plural}{' each' if len(nodes) > 1 else ''}"


def _numbers_and_markers(
    seen: Sequence[Sequence[tuple[int, dict[str, Any] | None]]],
) -> tuple[set[int], dict[int, dict[str, Any]]]:
    """The saves that any worker sees, and those of them that are declared complete."""
    numbers: set[int] = set()
    markers: dict[int, dict[str, Any]] = {}
    for found in seen:
        for number, marker in found:
            numbers.add(number)
            if marker is not None:
                markers.setdefault(number, marker)
    return numbers, markers


def _remove(target: Path, numbers: set[int]) -> None:
    for number in numbers:
        saves.remove_save(target, number)
