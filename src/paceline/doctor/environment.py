"""What launchers and users have set: whether it is complete, and whether it agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.doctor.facts import Facts
from paceline.doctor.finding import Finding, broken, note, ok, warning
from paceline.teams.launcher import Place, find_place

_MOST_PORTS = 65_535
# Variables that make every step slow, by the value that does so.
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked by another one"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of one machine talk through its memory, not over NVLink"),
    "NCCL_SHM_DISABLE": ("1", "GPUs of one machine talk over the network"),
}


def check_environment(facts: Facts) -> Iterator[Finding]:
    """Judge the variables of one worker."""
    variables = facts.variables
    try:
        place = find_place(variables)
    except ValueError as error:
        yield broken("environment", str(error), "start the script with torchrun, srun or mpirun")
        return
    if place.launcher == "none":
        yield from _check_absent(variables)
    else:
        findings = [*_check_place(place, variables), *_check_agreement(place, variables)]
        findings += _check_meeting_point(place, facts)
        yield from findings or [
            ok("environment", f"{place.launcher} started {place.num_workers} workers")
        ]
    for name, (value, effect) in _SLOW.items():
        if variables.get(name, "").upper() == value:
            yield warning(
                "environment",
                f"{name}={variables[name]} makes training slow: {effect}",
                f"unset {name} unless you are looking for an error",
            )


def _check_absent(variables: Mapping[str, str]) -> Iterator[Finding]:
    if "RANK" in variables or "WORLD_SIZE" in variables:
        given, missing = ("RANK", "WORLD_SIZE") if "RANK" in variables else ("WORLD_SIZE", "RANK")
        yield broken(
            "environment",
            f"{given} is set and {missing} is not, so each process would train alone",
            f"unset {given}, or set both by starting the script with torchrun",
        )
    elif "PMI_RANK" in variables:
        yield broken(
            "environment",
            "MPICH or Intel MPI started this process, and paceline does not read their variables",
            "start the script with torchrun, srun or Open MPI's mpirun",
        )
    elif "SLURM_JOB_ID" in variables:
        yield note(
            "environment",
            f"a shell of Slurm job {variables['SLURM_JOB_ID']}, but no task of it",
            "start the script with srun to get one worker per task",
        )
    else:
        yield ok("environment", "no launcher: a script trains here with one worker")


def _check_place(place: Place, variables: Mapping[str, str]) -> Iterator[Finding]:
    if place.num_workers < 1 or not 0 <= place.rank < place.num_workers:
        yield broken(
            "environment",
            f"{place.launcher} numbers this worker {place.rank} of {place.num_workers}; ranks "
            f"count from 0 to {max(0, place.num_workers - 1)}",
            "correct WORLD_SIZE and RANK, or let torchrun set them",
        )
    num_local = _number(variables.get("LOCAL_WORLD_SIZE"))
    if place.launcher != "torchrun" or num_local is None:
        return
    if num_local > place.num_workers or (place.local_rank or 0) >= num_local:
        yield broken(
            "environment",
            f"LOCAL_WORLD_SIZE={num_local} does not fit LOCAL_RANK={place.local_rank} and "
            f"WORLD_SIZE={place.num_workers}",
            "unset these variables and let torchrun set them",
        )
    num_nodes = _number(variables.get("GROUP_WORLD_SIZE"))
    if num_nodes == 1 and num_local < place.num_workers:
        yield broken(
            "environment",
            f"WORLD_SIZE={place.num_workers}, but torchrun started {num_local} workers on one node",
            "do not set WORLD_SIZE after torchrun has",
        )


def _check_agreement(place: Place, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the variables of two launchers contradict each other."""
    if place.launcher != "torchrun":
        return
    is_torchrun = "TORCHELASTIC_RUN_ID" in variables
    num_tasks = _number(variables.get("SLURM_NTASKS"))
    num_nodes = _number(variables.get("SLURM_NNODES"))
    is_task = "SLURM_PROCID" in variables
    if is_torchrun and is_task and num_tasks and num_nodes and num_tasks > num_nodes:
        yield broken(
            "environment",
            f"Slurm started {num_tasks} tasks on {num_nodes} nodes, and each of them started "
            "torchrun",
            "start one torchrun per node with srun --ntasks-per-node 1, or leave torchrun out",
        )
    elif not is_torchrun and is_task:
        yield from _compare(place, variables, "Slurm", "SLURM_PROCID", "SLURM_NTASKS")
    elif not is_torchrun and "OMPI_COMM_WORLD_RANK" in variables:
        own = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        yield from _compare(place, variables, "Open MPI", *own)


def _compare(
    place: Place, variables: Mapping[str, str], launcher: str, rank: str, size: str
) -> Iterator[Finding]:
    theirs = (_number(variables.get(rank)), _number(variables.get(size)))
    if None not in theirs and theirs != (place.rank, place.num_workers):
        yield broken(
            "environment",
            f"RANK={place.rank} and WORLD_SIZE={place.num_workers} contradict {launcher}'s "
            f"{rank}={theirs[0]} and {size}={theirs[1]}",
            f"unset RANK and WORLD_SIZE, so that {launcher}'s count",
        )


def _check_meeting_point(place: Place, facts: Facts) -> Iterator[Finding]:
    if place.num_workers <= 1:
        return
    address, port = facts.variables.get("MASTER_ADDR"), facts.variables.get("MASTER_PORT")
    if address is None or port is None:
        yield broken(
            "environment",
            f"{place.launcher} started {place.num_workers} workers, and "
            f"{'MASTER_ADDR' if address is None else 'MASTER_PORT'} is not set",
            "set MASTER_ADDR and MASTER_PORT to the first node's address and a free port",
        )
        return
    if not facts.master_addresses:
        yield broken(
            "environment",
            f"MASTER_ADDR={address} is a name that {facts.host} cannot resolve",
            "set MASTER_ADDR to the first node's IP address",
        )
    number = _number(port)
    if number is None or not 0 < number <= _MOST_PORTS:
        yield broken(
            "environment",
            f"MASTER_PORT={port} is not a port",
            "set MASTER_PORT to a free port, such as 29500",
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
