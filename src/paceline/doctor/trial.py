"""A first all-reduce: whether the workers really reach each other."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from paceline.doctor.finding import Finding, broken, ok
from paceline.teams.backend import NCCL_AND_GLOO, agree_on_backend, find_gpu
from paceline.teams.launcher import Place
from paceline.teams.watch import first_line

_ALONE = Place(launcher="none", rank=0, num_workers=1, local_rank=0, node=None)


def try_alone(*, timeout_s: float) -> Finding:
    """Start a backend with this worker alone."""
    return _finding(attempt(HashStore(), _ALONE, timeout_s=timeout_s), num_workers=1)


def try_together(store: Store, place: Place, *, timeout_s: float) -> Finding | None:
    """All workers sum a number. The first one knows how it went, the others get None."""
    problem = attempt(PrefixStore("trial", store), place, timeout_s=timeout_s)
    store.set(f"tried/{place.rank}", problem)
    if place.rank != 0:
        return None
    ranks = range(place.num_workers)
    problems = {rank: store.get(f"tried/{rank}").decode() for rank in ranks}
    failed = {rank: text for rank, text in problems.items() if text}
    first = next(iter(failed.items()), None)
    if first is None:
        return _finding("", num_workers=place.num_workers)
    return _finding(f"worker {first[0]}: {first[1]}", num_workers=place.num_workers)


def attempt(store: Store, place: Place, *, timeout_s: float) -> str:
    """Sum a number over all workers; what went wrong, or nothing."""
    try:
        backend = agree_on_backend(store, place.num_workers, find_gpu(place))
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.num_workers,
            timeout=timeout,
        )
        try:
            device = "cpu"
            if backend == NCCL_AND_GLOO:
                torch.cuda.set_device(place.gpu_index % torch.cuda.device_count())
                device = "cuda"
            number = torch.full((1,), float(place.rank), device=device)
            dist.all_reduce(number)
            expected = place.num_workers * (place.num_workers - 1) / 2
            if float(number) != expected:
                return f"the sum over all workers is {float(number):g} instead of {expected:g}"
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        return first_line(error)
    return ""


def _finding(problem: str, *, num_workers: int) -> Finding:
    whose = "alone" if num_workers == 1 else f"over {num_workers} workers"
    if problem:
        return broken(
            "backends",
            f"an all-reduce {whose} failed: {problem}",
            "look at the links above, and at firewalls between the machines",
        )
    return ok("backends", f"an all-reduce {whose} works")
