"""What one worker sees of its environment: plain data, so that workers can compare it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from pydantic import BaseModel

from paceline.doctor.interfaces import (
    Interface,
    address_towards,
    addresses_of,
    find_interfaces,
    infiniband_devices,
)
from paceline.teams.host import machine
from paceline.version import __version__

PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "TP_SOCKET_",
    "OMP_",
    "MKL_NUM",
    "CUDA_",
    "TORCH_DISTRIBUTED_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_COMM_WORLD_",
    "PMI_",
    "MASTER_",
)
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
EXTRAS = {
    "lab": ("pyroute2", "scikit-learn"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow-skinny", "mlflow"),
    "peers": ("accelerate", "torchft"),
}
_SHARED_MEMORY = Path("/dev/shm")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_UNSYNCHRONISED = 0x0040


class Facts(BaseModel):
    """What one worker sees."""

    host: str
    machine: str
    """Different where workers do not share a network."""
    versions: dict[str, str]
    extras: dict[str, str]
    backends: list[str]
    gpus: list[str]
    cuda_problem: str
    """Why torch's CUDA does not work, if it was built with it."""
    variables: dict[str, str]
    interfaces: list[Interface]
    infiniband: list[str]
    host_addresses: list[str]
    """What this host's own name resolves to."""
    master_addresses: list[str]
    outward_address: str | None
    """Of this machine, on the way to the first worker, or to anywhere."""
    is_clock_synchronised: bool | None
    shared_memory_bytes: int | None
    open_files: int | None
    locked_memory_bytes: int | None
    """None: unlimited, or not known."""
    num_cores: float
    """That this process may use."""
    num_threads: int
    """That torch uses."""


def collect_facts(environment: Mapping[str, str] = os.environ) -> Facts:
    """Look at this process's environment."""
    import torch

    master = environment.get("MASTER_ADDR")
    gpus, problem = _gpus()
    return Facts(
        host=socket.gethostname(),
        machine=f"{machine()}/{_network_namespace()}",
        versions=_versions(),
        extras=_extras(),
        backends=_backends(),
        gpus=gpus,
        cuda_problem=problem,
        variables={
            name: value
            for name, value in sorted(environment.items())
            if name in NAMES or name.startswith(PREFIXES)
        },
        interfaces=find_interfaces(),
        infiniband=infiniband_devices(),
        host_addresses=addresses_of(socket.gethostname()),
        master_addresses=[] if master is None else addresses_of(master),
        outward_address=address_towards(master),
        is_clock_synchronised=_is_clock_synchronised(),
        shared_memory_bytes=_shared_memory_bytes(),
        open_files=_limit("RLIMIT_NOFILE"),
        locked_memory_bytes=_limit("RLIMIT_MEMLOCK"),
        num_cores=_num_cores(),
        num_threads=torch.get_num_threads(),
    )


def _network_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:  # not Linux
        return ""


def _versions() -> dict[str, str]:
    import torch

    found = {
        "python": platform.python_version(),
        "paceline": __version__,
        "torch": str(torch.__version__),
        "numpy": importlib.metadata.version("numpy"),
        "kernel": platform.release(),
    }
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _extras() -> dict[str, str]:
    found = {}
    for packages in EXTRAS.values():
        for package in packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def _backends() -> list[str]:
    import torch.distributed as dist

    if not dist.is_available():
        return []
    is_there = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    return [name for name, is_available in is_there.items() if is_available]


def _gpus() -> tuple[list[str], str]:
    """The names of the GPUs that torch sees, and why it sees none if it should."""
    import torch

    if torch.version.cuda is None:
        return [], ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], ""
    except (RuntimeError, AssertionError) as error:
        return [], next(iter(str(error).splitlines()), "")


class _Timex(ctypes.Structure):
    """The head of the kernel's ``struct timex``; the rest is only room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def _is_clock_synchronised() -> bool | None:
    """Whether the kernel's clock follows a time server; None where it does not say."""
    if sys.platform != "linux":
        return None
    state = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(state)) < 0:
        return None
    return not state.status & _UNSYNCHRONISED


def _shared_memory_bytes() -> int | None:
    return shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None


def _limit(name: str) -> int | None:
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def _num_cores() -> float:
    own = psutil.Process()
    # macOS pins no process to cores.
    is_pinned = hasattr(own, "cpu_affinity")
    num_cores = float(len(own.cpu_affinity()) if is_pinned else os.cpu_count() or 1)
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return num_cores if quota == "max" else min(num_cores, int(quota) / int(period))
    except (OSError, ValueError):
        return num_cores
