"""What is said of an environment, one defect at a time."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.cli import doctor as doctor_command
from paceline.doctor.comparison import compare, compare_clocks
from paceline.doctor.doctor import Examination
from paceline.doctor.environment import check_environment
from paceline.doctor.facts import Facts, collect_facts
from paceline.doctor.finding import Finding, worst
from paceline.doctor.interfaces import Interface, chosen_by_nccl
from paceline.doctor.links import check_links
from paceline.doctor.local import check_backends, check_limits, check_threads, check_versions


def interface(name: str, *addresses: str, **others: Any) -> Interface:
    values = {"is_up": True, "is_half_duplex": False, "speed_mbit": 10_000, "mtu": 1500}
    return Interface(name=name, addresses=list(addresses), **{**values, **others})


LOOPBACK = interface("lo", "127.0.0.1", "::1", mtu=65536, speed_mbit=0)
HEALTHY = collect_facts({}).model_copy(
    update={
        "host": "host-a",
        "machine": "a",
        "interfaces": [LOOPBACK, interface("eth0", "10.0.0.1")],
        "infiniband": [],
        "host_addresses": ["10.0.0.1"],
        "outward_address": "10.0.0.1",
        "shared_memory_bytes": 8 << 30,
        "open_files": 65536,
        "num_cores": 8.0,
        "num_threads": 2,
        "gpus": [],
        "cuda_problem": "",
        "backends": ["gloo"],
    }
)


def facts(**changes: Any) -> Facts:
    return HEALTHY.model_copy(update=changes)


def only(findings: list[Finding], level: str) -> str:
    """The text of the one finding that is not well."""
    (found,) = [each for each in findings if each.level not in ("ok", "note")]
    assert found.level == level
    assert found.remedy.strip() and not found.remedy.endswith(".")
    return found.text


SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
MEETING = {"MASTER_ADDR": "host-a", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "0"} | MEETING


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH or Intel MPI started this process"),
        (TORCHRUN | {"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}, "started 2 workers on one"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8 does not fit"),
        (TORCHRUN | SLURM | {"SLURM_NTASKS": "8"}, "contradict Slurm's SLURM_PROCID=1"),
        (
            TORCHRUN | SLURM | {"SLURM_NNODES": "2", "TORCHELASTIC_RUN_ID": "x"},
            "Slurm started 4 tasks on 2 nodes",
        ),
        (
            TORCHRUN | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            "contradict Open MPI's",
        ),
        (SLURM, "MASTER_ADDR is not set"),
        (SLURM | MEETING | {"MASTER_PORT": "99999"}, "MASTER_PORT=99999 is not a port"),
    ],
)
def test_variables_that_do_not_fit(variables: dict[str, str], text: str) -> None:
    findings = list(check_environment(facts(variables=variables, master_addresses=["10.0.0.1"])))
    assert text in only(findings, "broken")


def test_variables_that_fit() -> None:
    for variables in ({}, TORCHRUN, SLURM | MEETING, {"SLURM_JOB_ID": "7"}):
        seen = facts(variables=variables, master_addresses=["10.0.0.1"])
        assert worst(check_environment(seen)) in ("ok", "note")
    unknown = facts(variables=TORCHRUN, master_addresses=[])
    assert "host-a cannot resolve" in only(list(check_environment(unknown)), "broken")
    slow = facts(variables={"CUDA_LAUNCH_BLOCKING": "1"})
    assert "every kernel is waited for" in only(list(check_environment(slow)), "warning")


def test_a_host_name_that_leads_to_the_loopback() -> None:
    seen = facts(host_addresses=["127.0.1.1"])
    alone, spread = (list(check_links(seen, is_spread=each)) for each in (False, True))
    assert "host-a resolves to 127.0.1.1" in only(alone, "warning")
    assert "other machines cannot reach it" in only(spread, "broken")
    (found,) = [each for each in spread if each.level == "broken"]
    assert "GLOO_SOCKET_IFNAME=eth0" in found.remedy
    named = facts(host_addresses=["127.0.1.1"], variables={"GLOO_SOCKET_IFNAME": "eth0"})
    assert worst(check_links(named, is_spread=True)) == "ok"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"variables": {"NCCL_SOCKET_IFNAME": "ib"}}, "fits no interface of host-a"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "^eth,lo"}}, "fits no interface"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "=eth"}}, "fits no interface"),
        ({"variables": {"TP_SOCKET_IFNAME": "eth1"}}, "has no such interface"),
        (
            {
                "variables": {"GLOO_SOCKET_IFNAME": "eth1"},
                "interfaces": [interface("eth1", "10.0.0.2", is_up=False)],
            },
            "which is down",
        ),
        (
            {
                "variables": {"GLOO_SOCKET_IFNAME": "eth1"},
                "interfaces": [interface("eth1")],
            },
            "which has no address",
        ),
        (
            {"infiniband": ["mlx5_0"], "variables": {"NCCL_IB_HCA": "mlx4"}},
            "names mlx4, and host-a has only mlx5_0",
        ),
    ],
)
def test_links_that_are_not_there(changes: dict[str, Any], text: str) -> None:
    assert text in only(list(check_links(facts(**changes))), "broken")


def test_links_that_are_slow() -> None:
    seen = facts(interfaces=[interface("eth0", "10.0.0.1", speed_mbit=100)])
    assert "eth0 runs at 100 Mbit/s" in only(list(check_links(seen)), "warning")
    unused = facts(infiniband=["mlx5_0"], variables={"NCCL_IB_DISABLE": "1"})
    assert "has InfiniBand (mlx5_0)" in only(list(check_links(unused)), "warning")


def test_how_nccl_reads_its_variable() -> None:
    all_of_them = [interface(name, "10.0.0.1") for name in ("lo", "eth0", "eth1", "ib0")]

    def chosen(value: str) -> list[str]:
        return [each.name for each in chosen_by_nccl(value, all_of_them)]

    assert chosen("eth") == ["eth0", "eth1"]
    assert chosen("=eth0") == ["eth0"]
    assert chosen("^lo,ib") == ["eth0", "eth1"]
    assert chosen("=eth") == []


def test_limits_and_threads() -> None:
    small = facts(shared_memory_bytes=64 << 20)
    assert "/dev/shm has 64 MiB" in only(list(check_limits(small)), "warning")
    few = facts(open_files=1024)
    assert "may open 1024 files" in only(list(check_limits(few)), "warning")
    locked = facts(infiniband=["mlx5_0"], locked_memory_bytes=8 << 20)
    assert "lock 8 MiB" in only(list(check_limits(locked)), "broken")
    crowded = list(check_threads(facts(num_threads=8), num_local=2))
    assert "2 workers x 8 threads on 8 cores" in only(crowded, "warning")
    assert "OMP_NUM_THREADS=4" in crowded[0].remedy
    assert worst(check_threads(facts(num_threads=4), num_local=2)) == "ok"
    assert worst(check_threads(facts(num_threads=1), num_local=2)) == "note"


def test_backends_and_versions() -> None:
    assert only(list(check_backends(facts(backends=[]), num_local=1)), "broken")
    shared = list(check_backends(facts(gpus=["H200"]), num_local=2))
    assert "2 workers share 1 GPUs" in only(shared, "warning")
    broken_driver = facts(cuda_problem="no driver")
    assert "no driver" in only(list(check_backends(broken_driver, num_local=1)), "warning")
    newer = facts(versions=HEALTHY.versions | {"torch": "2.99.0+cpu"})
    assert any("not with 2.99.0" in each.text for each in check_versions(newer))


def test_links_of_machines_that_differ() -> None:
    other = facts(
        host="host-b",
        machine="b",
        interfaces=[LOOPBACK, interface("eth0", "10.0.0.1", mtu=9000)],
    )
    by_rank = {0: HEALTHY, 1: HEALTHY, 2: other}
    found = only(list(compare(by_rank, num_workers=3)), "warning")
    assert found.startswith("worker 2 on host-b: the MTU is 9000 there and 1500 elsewhere")
    assert worst(compare({0: HEALTHY, 1: HEALTHY}, num_workers=2)) == "ok"


def test_clocks() -> None:
    assert worst(compare_clocks({4: (0.01, 0.001)})) == "ok"
    found = only(list(compare_clocks({4: (-2.5, 0.001), 8: (0.3, 0.5)})), "warning")
    assert found.startswith("the clock of worker 4 is 2.5 s behind worker 0's")


def test_names_are_shown_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A control character takes more room once it can be seen; no word may fall off for it."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "host\x1b[31m\x07\x07\x07\x07\x07 has a name that moves the cursor and is long enough"
    found = Finding(topic="links", level="broken", text=text, remedy="call it\x1b[2J otherwise")
    doctor_command._show(Examination(findings=(found,), facts={}, num_workers=1))
    shown = " ".join(capsys.readouterr().out.split())
    assert r"host\x1b[31m\x07\x07\x07\x07\x07 has a name that moves the" in shown
    assert "cursor and is long enough" in shown
    assert r"-> call it\x1b[2J otherwise" in shown
