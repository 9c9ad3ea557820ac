"""Checkpoints on disk: ``folder/save-000001`` with a part of each worker, and a marker.

The marker is written last, so a save without one was interrupted. A folder may be on a disk that
all workers share, or each node may see its own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from paceline.reading import parse_json
from paceline.strategies.equality import checksum
from paceline.train.skeleton import take_apart

FORMAT = 2
OLD_FORMAT = 1
"""One file of each worker, written by ``torch.save``. It can still be read."""

Part = tuple[dict[str, torch.Tensor], bytes]
"""A worker's tensors by name, and the skeleton of its state."""

_MARKER = "complete.json"
_MOST_MARKER_BYTES = 1 << 26
_SAID_BY_MARKERS = {"format", "identifier", "nodes", "strategy", "differing"}
_NAME = re.compile(r"save-(\d{6,})")
_PART_NAME = re.compile(r"worker-(\d+)(\.pt)?")


def find_saves(folder: Path) -> dict[int, dict[str, Any] | None]:
    """The saves in ``folder`` by number, each with what its marker says, if it has one."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return {}
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return {int(match[1]): _read_marker(folder / match[0]) for match in matches}


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it, and say which of them is not one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def save_path(folder: Path, number: int) -> Path:
    """The folder of one save."""
    return folder / f"save-{number:06d}"


def part_path(folder: Path, number: int, rank: int, *, layout: int = FORMAT) -> Path:
    """The part of one worker in one save: a folder, and in the old format a file."""
    suffix = ".pt" if layout == OLD_FORMAT else ""
    return save_path(folder, number) / f"worker-{rank}{suffix}"


def find_parts(folder: Path, number: int) -> list[int]:
    """The workers whose parts of a save can be seen from here."""
    try:
        names = [path.name for path in save_path(folder, number).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := _PART_NAME.fullmatch(name)))


def write_marker(folder: Path, number: int, marker: dict[str, Any], *, rank: int) -> None:
    """Declare a save complete. Several workers may do so, with the same words."""
    # Values that JSON does not know are there to be read by people.
    data = json.dumps(marker, indent=2, default=str).encode()
    path = save_path(folder, number) / _MARKER
    draft = path.with_name(f"{_MARKER}.{rank}.part")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_names(path.parent, path.parent.parent)


def write_part(path: Path, part: Part, *, identifier: str) -> None:
    """Write a worker's part: then all of it is on the disk, or an OSError says why not."""
    make_folder(path)
    _storage().write_tensors(path, *part, identifier=identifier)
    _sync_names(path, path.parent, path.parent.parent)


def read_part(path: Path, *, expected: str | None = None) -> Part:
    """Read a worker's part, on the CPU.

    Args:
        path: Where it is.
        expected: Its :func:`checksum_of`, where it is known. Another one is refused: torch reads
            tensors whose bytes have changed on the disk without noticing.

    """
    if path.suffix == ".pt":
        with _storage().readable():
            return take_apart(torch.load(path, map_location="cpu", weights_only=True))
    part: Part = _storage().read_tensors(path)
    if expected is not None and checksum_of(part) != expected:
        raise ValueError("it is damaged: it holds other values than were saved")
    return part


def checksum_of(part: Part) -> str:
    """What equal parts have in common, and others do not."""
    tensors, skeleton = part
    everything = {"": torch.frombuffer(bytearray(skeleton), dtype=torch.uint8), **tensors}
    sums = {
        name: int(checksum(one.resolve_conj().resolve_neg())) for name, one in everything.items()
    }
    return hashlib.blake2b(json.dumps(sums, sort_keys=True).encode(), digest_size=16).hexdigest()


def expected_checksum(marker: Mapping[str, Any], rank: int) -> str | None:
    """The checksum of a worker's part, which earlier versions did not write."""
    known = marker.get("checksums")
    return known[rank] if isinstance(known, list) and 0 <= rank < len(known) else None


def check_part(path: Path, marker: Mapping[str, Any]) -> None:
    """Refuse a part that is missing, damaged or of another save than the marker."""
    if path.suffix == ".pt":
        with _storage().readable():
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            identifier = str(state["identifier"])
    else:
        identifier = _storage().read_identifier(path)
    if identifier != marker["identifier"]:
        raise ValueError("it is of another save than its folder's complete.json")


def remove_save(folder: Path, number: int) -> None:
    """Remove a save, together with others who do the same at the same time."""
    # The marker first: what is left is then no save, should this be interrupted.
    with contextlib.suppress(OSError):
        (save_path(folder, number) / _MARKER).unlink()
    shutil.rmtree(save_path(folder, number), ignore_errors=True)


def _storage() -> ModuleType:
    """Imported by those who save: torch.distributed.checkpoint takes as long as all the rest."""
    from paceline.train import storage

    return storage


def _read_marker(path: Path) -> dict[str, Any] | None:
    try:
        with (path / _MARKER).open("rb") as file:
            marker = parse_json(file.read(_MOST_MARKER_BYTES), with_infinity=True)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return marker if _is_marker(marker) else None


def _is_marker(found: Any) -> bool:
    """Whether a file says what a marker says; others declare nothing."""
    if not isinstance(found, dict) or not found.keys() >= _SAID_BY_MARKERS:
        return False
    nodes = found["nodes"]
    # Not every save has these.
    kinds = {"options": dict, "checksums": list, "absent": list}
    if not all(isinstance(found.get(name, kind()), kind) for name, kind in kinds.items()):
        return False
    if not isinstance(nodes, list) or not all(isinstance(r, list) and r for r in nodes):
        return False
    ranks = [rank for ranks in nodes for rank in ranks]
    are_numbers = all(type(rank) is int for rank in ranks)
    return bool(ranks) and are_numbers and sorted(ranks) == list(range(len(ranks)))


def _sync_names(*folders: Path) -> None:
    """Wait until the names in these folders are on the disk."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
