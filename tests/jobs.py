"""Real jobs for tests: worker processes over Gloo, started fast from a warm fork server.

``PACELINE_TEST_DEVICE=cuda`` puts the tests' models and data on the machine's GPU, which all
workers share; what they exchange still travels over Gloo.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.teams import Workers
from paceline.teams.workers import form_workers

# Only a name: the fork server must not touch CUDA, which does not survive a fork.
DEVICE = torch.device(os.environ.get("PACELINE_TEST_DEVICE", "cpu"))

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "paceline.train", "jobs"])
_TIMEOUT_S = 180.0


def run_job(work: Callable[..., Any], *arguments: Any, nodes: Sequence[int] = (2, 2)) -> list[Any]:
    """Run ``work(workers, *arguments)`` on every worker of a job; their results, by rank.

    ``nodes`` gives the number of workers of each node. ``work`` must be a module's function.
    """
    ranks = list(range(sum(nodes)))
    layout = [ranks[sum(nodes[:i]) : sum(nodes[: i + 1])] for i in range(len(nodes))]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        pipes, processes = [], []
        for rank in ranks:
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_worker, args=(work, arguments, layout, rank, store, theirs), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            answers = [_receive(pipe, rank) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(5.0)
                process.kill()
    failures = [text for ok, text in answers if not ok]
    if failures:
        raise AssertionError("\n".join(failures))
    return [value for _, value in answers]


def make_reproducible() -> None:
    """Make this process compute the same numbers as every other one."""
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        # cuBLAS reads it when CUDA starts in this process, which is not before this call.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def _receive(pipe: Connection, rank: int) -> tuple[bool, Any]:
    if not pipe.poll(_TIMEOUT_S):
        return False, f"worker {rank} did not answer"
    try:
        answer: tuple[bool, Any] = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return False, f"worker {rank} died"
    return answer


def _worker(
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    layout: list[list[int]],
    rank: int,
    store: str,
    pipe: Connection,
) -> None:
    make_reproducible()
    try:
        num_workers = sum(len(ranks) for ranks in layout)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=num_workers
        )
        workers: Workers = form_workers(layout)
        # Plain bytes: multiprocessing would send a handle of each tensor, which dies with us.
        pipe.send_bytes(pickle.dumps((True, work(workers, *arguments))))
        dist.barrier()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, f"worker {rank}:\n{traceback.format_exc()}")))
    # Without the interpreter's shutdown, which waits for the communication library's threads.
    os._exit(0)
