"""What the launcher says about this worker: torchrun, Slurm, Open MPI, or nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_WHOLE = re.compile(r"\s*[0-9]{1,9}\s*")


@dataclass(frozen=True, kw_only=True)
class Place:
    """One worker's place in its job, as its launcher gave it."""

    launcher: str
    rank: int
    num_workers: int
    # Chooses a GPU, and nothing else. None where the launcher did not say.
    local_rank: int | None
    # Unique to a machine within the job; only compared, never interpreted. None where the launcher
    # numbers no machines, and only what they say of themselves tells them apart.
    node: int | None

    @property
    def gpu_index(self) -> int:
        """Which of the machine's GPUs is this worker's."""
        if self.local_rank is None:
            raise ValueError(
                f"{self.launcher} set RANK but not LOCAL_RANK; start the script with torchrun, "
                "srun or mpirun, or call torch.distributed.init_process_group before"
            )
        return self.local_rank


@dataclass(frozen=True, kw_only=True)
class _Variables:
    launcher: str
    rank: str
    num_workers: str
    local_rank: str
    node: str | None


# In this order: a torchrun inside a Slurm allocation sees Slurm's variables too, and torchrun's are
# the ones that describe its workers.
_LAUNCHERS = (
    _Variables(
        launcher="torchrun",
        rank="RANK",
        num_workers="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        node="GROUP_RANK",
    ),
    _Variables(
        launcher="slurm",
        rank="SLURM_PROCID",
        num_workers="SLURM_NTASKS",
        local_rank="SLURM_LOCALID",
        node="SLURM_NODEID",
    ),
    _Variables(
        launcher="openmpi",
        rank="OMPI_COMM_WORLD_RANK",
        num_workers="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        # Open MPI numbers no nodes, and --map-by node deals ranks out like cards: a node cannot be
        # told from ranks.
        node=None,
    ),
)


def find_place(environment: Mapping[str, str]) -> Place:
    """This worker's place; a job of one worker where no launcher left its variables."""
    for names in _LAUNCHERS:
        if names.rank in environment and names.num_workers in environment:
            return _read(names, environment)
    return Place(launcher="none", rank=0, num_workers=1, local_rank=0, node=None)


def _read(names: _Variables, environment: Mapping[str, str]) -> Place:
    def number_if_set(name: str | None) -> int | None:
        # Lightning's and other people's launchers imitate torchrun, but not all of it.
        return None if name is None or name not in environment else number(name)

    def number(name: str) -> int:
        text = environment[name]
        if not _WHOLE.fullmatch(text):
            raise ValueError(
                f"{name}={text[:40]!r} is not a whole number of at least 0; unset it, or start the "
                "script with torchrun, srun or mpirun"
            )
        return int(text)

    rank, num_workers = number(names.rank), number(names.num_workers)
    if rank >= num_workers:
        raise ValueError(
            f"{names.rank}={rank} is not below {names.num_workers}={num_workers}: ranks count from "
            "0; start the script with torchrun, srun or mpirun"
        )
    return Place(
        launcher=names.launcher,
        rank=rank,
        num_workers=num_workers,
        local_rank=number_if_set(names.local_rank),
        node=number_if_set(names.node),
    )
