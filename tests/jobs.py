"""Real jobs for tests: worker processes over Gloo, started fast from a warm fork server.

``PACELINE_TEST_DEVICE=cuda`` puts the tests' models and data on the machine's GPU, which all
workers share; what they exchange still travels over Gloo.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
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
# What tests and the first step of an optimizer import: each worker would import it anew.
_context.set_forkserver_preload(
    ["hypothesis", "pytest", "torch._dynamo", "paceline.train", "paceline.train.storage", "jobs"]
)
# This module is the last that the fork server imports. Workers share its memory, which a search for
# garbage would copy.
gc.freeze()
_TIMEOUT_S = 180.0


def run_job(
    work: Callable[..., Any],
    *arguments: Any,
    nodes: Sequence[int] = (2, 2),
    dying: Sequence[int] = (),
) -> list[Any]:
    """Run ``work(workers, *arguments)`` on every worker of a job; their results, by rank.

    ``nodes`` gives the number of workers of each node. ``work`` must be a module's function. The
    ranks in ``dying`` must die, and have no results.
    """
    ranks = list(range(sum(nodes)))
    layout = [ranks[sum(nodes[:i]) : sum(nodes[: i + 1])] for i in range(len(nodes))]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        calls = [(_as_worker, (work, arguments, layout, rank, store)) for rank in ranks]
        return _run_all(calls, dying)


def run_launched(
    work: Callable[..., Any],
    *arguments: Any,
    environments: Sequence[Mapping[str, str]],
    dying: Sequence[int] = (),
) -> list[Any]:
    """Run ``work(*arguments)`` in processes that find these variables, as a launcher left them."""
    calls = [(_as_launched, (work, arguments, variables)) for variables in environments]
    return _run_all(calls, dying)


def _run_all(
    calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], dying: Sequence[int] = ()
) -> list[Any]:
    pipes, processes = [], []
    for index, call in enumerate(calls):
        ours, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_answer, args=(*call, index, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    are_well = False
    try:
        answers = _receive_all(pipes, dying)
        are_well = all(ok for ok, _ in answers) and not dying
    finally:
        for process in processes:
            process.join(5.0 if are_well else 0.0)
            process.kill()
    failures = [text for rank, (ok, text) in enumerate(answers) if not ok and rank not in dying]
    if failures:
        raise AssertionError("\n".join(failures))
    assert [answers[rank] for rank in dying] == [(False, f"worker {rank} died") for rank in dying]
    return [value if ok else None for ok, value in answers]


def _receive_all(pipes: Sequence[Connection], dying: Sequence[int]) -> list[tuple[bool, Any]]:
    answers = {pipe: (False, f"worker {i} did not answer") for i, pipe in enumerate(pipes)}
    open_pipes, deadline = list(pipes), time.monotonic() + _TIMEOUT_S
    while open_pipes and (
        ready := connection.wait(open_pipes, max(0.0, deadline - time.monotonic()))
    ):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            open_pipes.remove(pipe)
            try:
                answers[pipe] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                answers[pipe] = (False, f"worker {pipes.index(pipe)} died")
            if not answers[pipe][0] and pipes.index(pipe) not in dying:
                # The others may wait for this one for ever.
                deadline = min(deadline, time.monotonic() + 15.0)
    return [answers[pipe] for pipe in pipes]


def make_reproducible() -> None:
    """Make this process compute the same numbers as every other one."""
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        # cuBLAS reads it when CUDA starts in this process, which is not before this call.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def _answer(
    work: Callable[..., Any], arguments: tuple[Any, ...], index: int, pipe: Connection
) -> None:
    make_reproducible()
    try:
        answer = (True, work(*arguments))
    except BaseException:
        answer = (False, f"worker {index}:\n{traceback.format_exc()}")
    # Plain bytes: multiprocessing would send a handle of each tensor, which dies with us.
    pipe.send_bytes(pickle.dumps(answer))
    if answer[0] and dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # some tests' workers die
            dist.barrier()
    # Without the interpreter's shutdown, which waits for the communication library's threads.
    os._exit(0)


def _as_worker(
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    layout: list[list[int]],
    rank: int,
    store: str,
) -> Any:
    num_workers = sum(len(ranks) for ranks in layout)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_workers
    )
    workers: Workers = form_workers(layout)
    return work(workers, *arguments)


def _as_launched(
    work: Callable[..., Any], arguments: tuple[Any, ...], variables: Mapping[str, str]
) -> Any:
    os.environ.update(variables)
    return work(*arguments)
