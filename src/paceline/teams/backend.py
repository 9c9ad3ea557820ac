"""Which of torch's backends carries a job: one choice for all its workers."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from paceline.cluster.collective import Library
from paceline.teams.launcher import Place

GLOO = "gloo"
NCCL_AND_GLOO = "cpu:gloo,cuda:nccl"


def find_gpu(place: Place) -> str | None:
    """A name for this worker's GPU that no other in the job has; None if there is none.

    Some launchers show each worker its own GPU alone, others show all of them to all.
    """
    if not torch.cuda.is_available():
        return None
    index = place.gpu_index % torch.cuda.device_count()
    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(index).uuid}"


def agree_on_backend(store: Store, num_workers: int, gpu: str | None) -> str:
    """NCCL for CUDA tensors where every worker has a GPU to itself, Gloo otherwise.

    Workers that chose on their own would wait for each other in different backends.
    """
    if gpu is None or store.add(f"paceline/workers-on/{gpu}", 1) > 1:
        store.add("paceline/workers-without", 1)
    if store.add("paceline/workers-counted", 1) == num_workers:
        store.set("paceline/all-counted", "yes")
    store.wait(["paceline/all-counted"])
    return GLOO if store.add("paceline/workers-without", 0) else NCCL_AND_GLOO


def library_in_use() -> Library:
    """What carries this job's tensors: NCCL where each worker has a GPU, Gloo otherwise."""
    return "nccl" if "nccl" in dist.get_backend_config() else "gloo"


def device_in_use() -> torch.device:
    """Where this job's tensors are: on GPUs where NCCL carries them."""
    return torch.device("cuda" if library_in_use() == "nccl" else "cpu")
