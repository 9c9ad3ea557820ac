"""Save a whole job, so that a run can be killed at any moment and resumed.

All workers take each step of this together (:class:`Crew`), and one that fails is named by all.
Saving writes every worker's part, then the markers that declare the save complete, and only then
removes the save before.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.teams import Team
from paceline.train import saves
from paceline.train.contents import Contents
from paceline.train.crew import CheckpointError, Crew
from paceline.train.skeleton import take_apart
from paceline.version import __version__


def begin_save(
    folder: str | Path,
    contents: Contents,
    *,
    extra: Mapping[str, Any],
    team: Team | None = None,
) -> Callable[[], None]:
    """Collect what the next save to ``folder`` holds; what is returned writes it.

    Args:
        folder: Where to write.
        contents: What to write.
        extra: The user's own values.
        team: Over which the workers meet while they write, if training goes on meanwhile. What is
            written is then a copy.

    """
    crew, target = Crew(contents.workers), Path(folder)

    def look() -> dict[str, Any]:
        saves.make_folder(target)
        return {"found": list(saves.find_saves(target).items()), "identifier": uuid.uuid4().hex}

    answers = [one for one in crew.share(look, task=f"save to {target}") if one is not None]
    numbers, markers = numbers_and_markers([answer["found"] for answer in answers])
    number = 1 + max(numbers, default=0)
    identifier = answers[0]["identifier"]
    # What an interrupted run left behind. It may need the room that this save will take.
    _remove(target, numbers - markers.keys())

    path = saves.part_path(target, number, crew.rank)
    parts: list[saves.Part] = []

    def collect() -> str | None:
        state = {"identifier": identifier, **contents.state(extra)}
        tensors, skeleton = take_apart(state)
        if team is not None:
            tensors = {name: one.to("cpu", copy=True) for name, one in tensors.items()}
        parts.append((tensors, skeleton))
        return contents.fingerprint()

    fingerprints = crew.share(collect, task=f"save to {path}")
    marker = {
        "format": saves.FORMAT,
        "number": number,
        "identifier": identifier,
        "paceline": __version__,
        "torch": torch.__version__,
        "nodes": crew.nodes,
        **contents.describe(),
        "differing": "parts of the model" if contents.is_sharded else _differing(fingerprints),
    }

    def write() -> None:
        _write(target, number, parts.pop(), marker, Crew(contents.workers, team))
        _remove(target, numbers)

    return write


def _write(target: Path, number: int, part: saves.Part, marker: dict[str, Any], crew: Crew) -> None:
    path = saves.part_path(target, number, crew.rank)

    def write() -> str:
        saves.write_part(path, part, identifier=marker["identifier"])
        return saves.checksum_of(part)

    def mark() -> None:
        # One worker of each node: nodes need not share a disk.
        if crew.leads_node:
            saves.write_marker(target, number, marker, rank=crew.rank)

    try:
        marker["checksums"] = crew.share(write, task=f"save to {path}")
        _note_absent(marker, crew)
        crew.share(mark, task=f"complete {path.parent}")
    except CheckpointError:
        _remove(target, {number})
        raise


def _note_absent(marker: dict[str, Any], crew: Crew) -> None:
    """Say whose parts a save lacks: those of nodes that are lost while others train on."""
    is_there = [one is not None for one in marker["checksums"]]
    absent = marker["absent"] = [rank for rank, is_here in enumerate(is_there) if not is_here]
    if absent and crew.rank == is_there.index(True):
        warnings.warn(
            f"the workers {absent} are lost, and checkpoints lack their parts; these are loaded "
            "with pace.load(..., average=True)",
            RuntimeWarning,
            stacklevel=5,
        )


def numbers_and_markers(
    seen: Sequence[Sequence[tuple[int, dict[str, Any] | None]] | None],
) -> tuple[set[int], dict[int, dict[str, Any]]]:
    """The saves that any worker sees, and those of them that are declared complete."""
    numbers: set[int] = set()
    markers: dict[int, dict[str, Any]] = {}
    for found in seen:
        for number, marker in found or ():
            numbers.add(number)
            if marker is not None:
                markers.setdefault(number, marker)
    return numbers, markers


def _differing(fingerprints: Sequence[str | None]) -> str | None:
    """What is not the same on all workers, if anything."""
    if None in fingerprints:
        return "models between exchanges"
    return "buffers" if len(set(fingerprints)) > 1 else None


def _remove(target: Path, numbers: Collection[int]) -> None:
    for number in numbers:
        saves.remove_save(target, number)
