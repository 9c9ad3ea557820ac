"""A checkpoint from a stranger: whichever of its files holds a pickle, none of it runs."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._canary,)


def pickled(canary: Path, _: bytes) -> bytes:
    return pickle.dumps(Payload(canary))


def torch_file(canary: Path, _: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"model": Payload(canary), "identifier": Payload(canary)}, file)
    return file.getvalue()


def pickle_in_front(canary: Path, content: bytes) -> bytes:
    return pickled(canary, b"") + content


def pickle_within(canary: Path, content: bytes) -> bytes:
    """The file's own pickle with another one in it, where it is one; otherwise at its end."""
    data = content.removesuffix(b".")
    return data + pickled(canary, b"")[2:]


FORMS: list[Callable[[Path, bytes], bytes]] = [pickled, torch_file, pickle_in_front, pickle_within]
# Names that readers of checkpoints look for; torch.distributed.checkpoint unpickles its .metadata.
STRAY_NAMES = (".metadata", "metadata.pkl", "__0_0.distcp", "worker-0.pt", "complete.json")


_attached: list[paceline.Pace] = []


@pytest.fixture(autouse=True)
def end_the_job() -> Iterator[None]:
    """Each test is a job of one worker in this process."""
    yield
    while _attached:
        _attached.pop().detach()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def attached(strategy: str) -> paceline.Pace:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _attached.append(paceline.attach(model, optimizer, strategy))
    return _attached[-1]


def load(pace: paceline.Pace, folder: Path) -> str:
    """What came of it; a checkpoint with files that nobody asked for may well load."""
    try:
        pace.load(folder)
    except Exception as problem:  # which one, is told in tests/train
        return str(problem)
    return ""


@pytest.mark.parametrize("strategy", ["sync", "daso"])
def test_no_file_of_a_checkpoint_runs_code(strategy: str, tmp_path: Path) -> None:
    pace = attached(strategy)
    saved, tried, canary = tmp_path / "saved", tmp_path / "tried", tmp_path / "canary"
    pace.save(saved)
    names = [path.relative_to(saved) for path in saved.rglob("*") if path.is_file()]
    assert names
    for form in FORMS:
        for name in names:
            shutil.copytree(saved, tried)
            (tried / name).write_bytes(form(canary, (saved / name).read_bytes()))
            load(pace, tried)
            assert not canary.exists(), f"{name} as {form.__name__} ran code"
            shutil.rmtree(tried)
    pace.load(saved)  # and the good one is still loaded


def test_all_of_them_at_once_are_refused(tmp_path: Path) -> None:
    pace = attached("sync")
    folder, canary = tmp_path / "saved", tmp_path / "canary"
    pace.save(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(pickled(canary, b""))
    assert load(pace, folder)
    assert not canary.exists()


def test_files_that_were_added_run_no_code_either(tmp_path: Path) -> None:
    pace = attached("sync")
    folder, canary = tmp_path / "saved", tmp_path / "canary"
    pace.save(folder)
    places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for place in places:
        for name in STRAY_NAMES:
            if not (place / name).exists():
                (place / name).write_bytes(pickled(canary, b""))
    load(pace, folder)
    assert not canary.exists()


def test_a_folder_of_nothing_but_pickles(tmp_path: Path) -> None:
    pace, canary = attached("sync"), tmp_path / "canary"
    for name in STRAY_NAMES:
        for place in (tmp_path / "evil", tmp_path / "evil" / "save-000001"):
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(pickled(canary, b""))
    assert load(pace, tmp_path / "evil")
    assert not canary.exists()
