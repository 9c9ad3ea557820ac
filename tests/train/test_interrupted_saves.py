"""A save that is killed or fails on one worker: the one before is intact, and all workers say why.

Faults are injected by name: an audit hook sees what a worker is about to do to the file system.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.teams import Workers
from paceline.train import CheckpointError, Pace, attach

# An exchange is under way at both saves.
DASO: dict[str, Any] = {"warmup_steps": 1, "late": "wait", "period": 4, "delay": 3, "wire": "int8"}
FIRST_SAVE, SECOND_SAVE, NUM_STEPS = 7, 11, 16

# A moment of the second save: the workers that are killed, the audit event, the end of the path it
# is about; and the step that a resumed run begins from.
MOMENTS: list[tuple[tuple[int, ...], str, str, int]] = [
    ((1,), "open", "save-000002/worker-1/__0_0.distcp", FIRST_SAVE),
    ((1,), "half written", "", FIRST_SAVE),
    ((3,), "os.rename", "save-000002/worker-3/.metadata", FIRST_SAVE),
    ((0, 2), "os.rename", "save-000002/complete.json", FIRST_SAVE),
    ((0, 1, 2, 3), "os.remove", "save-000001/complete.json", SECOND_SAVE),
    ((0, 1, 2, 3), "shutil.rmtree", "save-000001", SECOND_SAVE),
]


def on_event(event: str, end: str, act: Callable[[], None]) -> Callable[[], None]:
    """Act when this process is about to do something to a path, until what this returns is called.

    A hook cannot be removed; it can be told to rest.
    """
    is_armed = [True]

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if is_armed and name == event:
            path = arguments[1] if event == "os.rename" else arguments[0]
            if isinstance(path, str | Path) and str(path).endswith(end):
                act()

    sys.addaudithook(hook)
    return is_armed.clear


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def die_while_writing() -> None:
    """Let the system kill this process in the middle of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def train(
    workers: Workers, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
        optimizer.step()


def start(
    workers: Workers, kind: str = "normed", *, seed: int = 0
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Pace]:
    model, optimizer = workloads.build(kind, "adamw", seed=seed)
    return model, optimizer, attach(model, optimizer, "daso", workers=workers, **DASO)


def train_whole(workers: Workers) -> torch.Tensor:
    model, optimizer, _pace = start(workers)
    train(workers, model, optimizer, range(1, NUM_STEPS + 1))
    return workloads.flat_state(model)


def save_and_be_killed(
    workers: Workers, folder: str, moment: tuple[tuple[int, ...], str, str, int]
) -> None:
    model, optimizer, pace = start(workers)
    train(workers, model, optimizer, range(1, FIRST_SAVE + 1))
    pace.save(folder)
    train(workers, model, optimizer, range(FIRST_SAVE + 1, SECOND_SAVE + 1))
    killed, event, end, _ = moment
    if workers.world.rank in killed:
        if event == "half written":
            die_while_writing()
        else:
            on_event(event, end, die)
    pace.save(folder)


def resume_all(workers: Workers, folders: list[str]) -> list[tuple[int, torch.Tensor, list[str]]]:
    """From each folder: the step it was resumed at, the end, and what is left after a save."""
    results = []
    for folder in folders:
        model, optimizer, pace = start(workers, seed=7)
        pace.load(folder)
        resumed_at = pace.strategy.step
        train(workers, model, optimizer, range(resumed_at + 1, NUM_STEPS + 1))
        end = workloads.flat_state(model)
        pace.save(folder)
        left = sorted(
            str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()
        )
        pace.detach()
        results.append((resumed_at, end, left))
    return results


def test_a_save_that_is_killed_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    folders = [str(tmp_path / str(index)) for index in range(len(MOMENTS))]
    for folder, moment in zip(folders, MOMENTS, strict=True):
        with pytest.raises(AssertionError, match=f"worker {moment[0][-1]} died"):
            run_job(save_and_be_killed, folder, moment)
    whole = run_job(train_whole)
    for worker, results in enumerate(run_job(resume_all, folders)):
        for moment, (resumed_at, end, left) in zip(MOMENTS, results, strict=True):
            assert resumed_at == moment[3], moment
            assert torch.equal(end, whole[worker]), moment
            # What the killed save left is gone.
            assert {Path(name).parts[0] for name in left} == {"save-000003"}, (moment, left)
            assert len(left) == 2 * 4 + 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for two saves of one worker, until there is a ballast."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(CheckpointError) as problem:
        call()
    return str(problem.value)


def fill_the_disk(workers: Workers, shared: str, tiny: str) -> dict[str, Any]:
    """Worker 1 writes to a disk that becomes full; the others to one that does not."""
    # Larger than a file's buffer, so that it is torch whose write fails.
    model, optimizer, pace = start(workers, "wide")
    folder = Path(tiny if workers.world.rank == 1 else shared, "checkpoints")
    train(workers, model, optimizer, range(1, FIRST_SAVE + 1))
    pace.save(folder)
    saved = workloads.flat_state(model)
    train(workers, model, optimizer, range(FIRST_SAVE + 1, SECOND_SAVE + 1))
    trained = workloads.flat_state(model)
    ballast = Path(tiny, "ballast")
    if workers.world.rank == 1:
        free = os.statvfs(tiny)
        ballast.write_bytes(bytes((free.f_bavail - 1) * free.f_bsize))
    message = refused(lambda: pace.save(folder))
    left = sorted(path.name for path in folder.iterdir())
    pace.load(folder)
    results = {
        "message": message,
        "left": left,
        "step": pace.strategy.step,
        "is_saved_loaded": torch.equal(workloads.flat_state(model), saved),
    }
    # With room again, training and saving go on as if nothing had happened.
    train(workers, model, optimizer, range(FIRST_SAVE + 1, SECOND_SAVE + 1))
    if workers.world.rank == 1:
        ballast.unlink()
    pace.save(folder)
    return results | {
        "is_trained_again": torch.equal(workloads.flat_state(model), trained),
        "left_at_last": sorted(path.name for path in folder.iterdir()),
    }


def test_a_full_disk_of_one_worker_is_named_by_all(tmp_path: Path, tiny_disk: Path) -> None:
    results = run_job(fill_the_disk, str(tmp_path), str(tiny_disk))
    for result in results:
        message = result["message"]
        assert message.startswith("worker 1 on node 0 (")
        path = tiny_disk / "checkpoints" / "save-000002" / "worker-1"
        assert message.endswith(f"could not save to {path}: No space left on device")
        assert result["left"] == ["save-000001"]
        assert result["step"] == FIRST_SAVE
        assert result["is_saved_loaded"] and result["is_trained_again"]
        assert result["left_at_last"] == ["save-000002"]


def fail_here_and_there(workers: Workers, folder: str) -> dict[str, str]:
    model, optimizer, pace = start(workers)
    rank = workers.world.rank
    own = Path(folder, f"disk-{workers.node_index}")
    pace.save(own)
    # Something that is no folder, on one worker only.
    blocked = Path(folder, "blocked")
    if rank == 2:
        blocked.write_text("a file")
    messages = {
        "blocked": refused(lambda: pace.save(blocked if rank == 2 else own)),
        "below": refused(lambda: pace.save(blocked / "deeper" if rank == 2 else own)),
        "unreadable": refused(lambda: pace.load(blocked if rank == 2 else own)),
    }
    # The marker of the second node cannot be written: its files and the first node's are removed.
    disarm = on_event("os.rename", "complete.json", fail) if rank == 2 else None
    train(workers, model, optimizer, range(1, 3))
    messages["marker"] = refused(lambda: pace.save(own))
    if disarm is not None:
        disarm()
    messages["left"] = " ".join(sorted(path.name for path in own.iterdir()))
    pace.load(own)
    assert pace.strategy.step == 0
    return messages


def test_one_worker_that_cannot_write_is_named_by_all(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    for messages in run_job(fail_here_and_there, str(tmp_path)):
        assert all(text.startswith("worker 2 on node 1 (") for text in list(messages.values())[:4])
        assert messages["blocked"].endswith(f"could not save to {blocked}: Not a directory")
        assert messages["below"].endswith(
            f"could not save to {blocked / 'deeper'}: Not a directory"
        )
        assert messages["unreadable"].endswith(f"could not read {blocked}: Not a directory")
        assert messages["marker"].endswith(f"disk-1/save-000002: {os.strerror(errno.EDQUOT)}")
        assert messages["left"] == "save-000001"
