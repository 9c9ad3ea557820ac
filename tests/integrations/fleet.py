"""Jobs that use another training library, which is imported once and not by each worker.

As a program: imports a module, runs its functions as jobs of several workers, one after another,
and writes what every worker returns. Workers are copies of the program, and find the variables that
torchrun would have set.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by the first step of an optimizer: each worker would import it anew

_TIMEOUT_S = 540.0

Job = tuple[str, Sequence[int]]
"""A function's name, and the number of workers on each node."""


def run_fleet(module: str, jobs: Sequence[Job], folder: Path) -> dict[str, list[Any]]:
    """Run the functions of a module as jobs; by name, what each worker returned, by rank.

    A function gets a folder that the workers of its job share. Names may be used more than once:
    they come with the number of workers, ``"train/4"``.
    """
    path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), module, json.dumps(jobs), str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-6000:]
    return {
        label: [
            torch.load(folder / label / f"{rank}.pt", weights_only=False)
            for rank in range(sum(nodes))
        ]
        for label, nodes in ((_label(job), job[1]) for job in jobs)
    }


def run_example(name: str, *arguments: str) -> str:
    """Run a script of the examples in this process; what it prints."""
    path = Path(__file__).parents[2] / "examples" / name
    sys.argv = [str(path), *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(path), run_name="__main__")
    return output.getvalue()


def _label(job: Job) -> str:
    return f"{job[0]}/{sum(job[1])}"


def _run_job(work: Callable[[Path], Any], nodes: Sequence[int], folder: Path) -> bool:
    """Run one job; whether all workers did well."""
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(sum(nodes)):
        child = os.fork()
        if child == 0:
            node = next(i for i in range(len(nodes)) if rank < sum(nodes[: i + 1]))
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(sum(nodes)),
                LOCAL_RANK=str(rank - sum(nodes[:node])),
                LOCAL_WORLD_SIZE=str(nodes[node]),
                GROUP_RANK=str(node),
                NODE_RANK=str(node),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID="fleet",
            )
            os._exit(_work(work, folder, rank))
        children.append(child)
    return all(os.waitpid(child, 0)[1] == 0 for child in children)


def _work(work: Callable[[Path], Any], folder: Path, rank: int) -> int:
    warnings.simplefilter("ignore")
    try:
        torch.save(work(folder), folder / f"{rank}.pt")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    work_module = importlib.import_module(sys.argv[1])
    for job_name, job_nodes in json.loads(sys.argv[2]):
        job_folder = Path(sys.argv[3], _label((job_name, job_nodes)))
        if not _run_job(getattr(work_module, job_name), job_nodes, job_folder):
            sys.exit(f"{job_name} failed on {sum(job_nodes)} workers")
