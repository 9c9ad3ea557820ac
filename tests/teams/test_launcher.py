"""What launchers leave in the environment."""

from __future__ import annotations

import pytest

from paceline.teams.launcher import Place, find_place

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


def test_torchrun() -> None:
    assert find_place(TORCHRUN) == Place(
        launcher="torchrun", rank=5, num_workers=8, local_rank=1, node=2
    )


def test_slurm() -> None:
    assert find_place(SLURM) == Place(launcher="slurm", rank=3, num_workers=6, local_rank=0, node=1)


def test_open_mpi_numbers_no_nodes() -> None:
    assert find_place(OPEN_MPI) == Place(
        launcher="openmpi", rank=2, num_workers=4, local_rank=1, node=None
    )


def test_nobody() -> None:
    expected = Place(launcher="none", rank=0, num_workers=1, local_rank=0, node=None)
    assert find_place({}) == expected
    # A login shell inside an allocation has some of Slurm's variables, but is no task of it.
    assert find_place({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) == expected


def test_torchrun_inside_an_allocation_is_torchrun() -> None:
    assert find_place(SLURM | OPEN_MPI | TORCHRUN).launcher == "torchrun"
    assert find_place(SLURM | OPEN_MPI).launcher == "slurm"


def test_a_launcher_may_say_less_than_torchrun() -> None:
    place = find_place({"RANK": "1", "WORLD_SIZE": "2"})
    assert place == Place(launcher="torchrun", rank=1, num_workers=2, local_rank=None, node=None)
    with pytest.raises(ValueError, match=r"^torchrun set RANK but not LOCAL_RANK; start"):
        _ = place.gpu_index
    assert find_place(TORCHRUN).gpu_index == 1


@pytest.mark.parametrize(
    ("variables", "name"),
    [(TORCHRUN, "RANK"), (SLURM, "SLURM_NTASKS"), (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK")],
)
@pytest.mark.parametrize("value", ["", "one", "1.5"])
def test_a_bad_value_is_named(variables: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}={value!r} is not a whole number"):
        find_place(variables | {name: value})
