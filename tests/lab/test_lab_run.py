"""``paceline lab run`` with real torchrun jobs in real namespaces."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab_machine import (
    Start,
    interfaces,
    namespaces_of,
    processes_with,
    run_cli,
    wait_until,
)
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.lab.network import node_address

UNEQUAL = """\
name = "unequal"
[between]
latency = "1 ms"
bandwidth = "200 Mbit/s"
[[node]]
workers = 2
device = "cpu-core"
inside = { latency = "30 us", bandwidth = "2 GB/s" }
[[node]]
workers = 1
device = "cpu-core"
inside = { latency = "30 us", bandwidth = "2 GB/s" }
"""

TELL = """\
import fcntl, json, os, socket, struct, sys
import torch
import torch.distributed as dist
from paceline.teams import find_workers

workers = find_workers()
tensor = torch.tensor([float(10 ** dist.get_rank())])
dist.all_reduce(tensor)
with socket.socket() as any_socket:  # SIOCGIFADDR: the address of an interface
    answer = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", b"eth0"))
told = {
    name: int(os.environ[name])
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
}
told |= {"sum": tensor.item(), "nodes": workers.ranks_by_node, "node_index": workers.node_index}
told |= {"address": socket.inet_ntoa(answer[20:24]), "python": sys.executable}
print(json.dumps(told))
print("to the other stream", file=sys.stderr)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def unequal_job(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One job on a node of two workers and a node of one, described by a file."""
    folder = tmp_path_factory.mktemp("unequal")
    (folder / "unequal.toml").write_text(UNEQUAL)
    (folder / "tell.py").write_text(TELL)
    cluster, script = str(folder / "unequal.toml"), str(folder / "tell.py")
    return run_cli("lab", "run", "--cluster", cluster, "--", "python", script)


def told_by(job: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """What the workers told, by the prefix of their lines."""
    told = {}
    for line in job.stdout.splitlines():
        match = re.fullmatch(r"\[node(\d+:\d+)\] (\{.*\})", line)
        assert match is not None, f"not a worker's line: {line}"
        told[match[1]] = json.loads(match[2])
    return told


def test_workers_know_their_places(unequal_job: subprocess.CompletedProcess[str]) -> None:
    assert unequal_job.returncode == 0, unequal_job.stderr
    told = told_by(unequal_job)
    assert sorted(told) == ["0:0", "0:1", "1:0"]
    places = {
        name: (each["RANK"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"], each["GROUP_RANK"])
        for name, each in told.items()
    }
    assert places == {"0:0": (0, 0, 2, 0), "0:1": (1, 1, 2, 0), "1:0": (2, 0, 1, 1)}
    for name, each in told.items():
        assert each["WORLD_SIZE"] == 3
        assert each["nodes"] == [[0, 1], [2]]
        # The order of nodes is the lab's, not that of who came first.
        assert each["node_index"] == each["GROUP_RANK"] == int(name[0])
        assert each["address"] == node_address(each["GROUP_RANK"])


def test_gloo_sums_across_nodes(unequal_job: subprocess.CompletedProcess[str]) -> None:
    assert [each["sum"] for each in told_by(unequal_job).values()] == [111.0, 111.0, 111.0]


def test_streams_stay_apart_and_carry_prefixes(
    unequal_job: subprocess.CompletedProcess[str],
) -> None:
    first, *others = unequal_job.stderr.splitlines()
    assert first == "lab: links shaped by the kernel, one network namespace per node"
    assert sorted(others) == [f"[node{name}] to the other stream" for name in ("0:0", "0:1", "1:0")]


def test_python_is_the_one_paceline_runs_on(
    unequal_job: subprocess.CompletedProcess[str],
) -> None:
    assert {each["python"] for each in told_by(unequal_job).values()} == {sys.executable}


def test_the_first_failure_decides() -> None:
    # Worker 0 of node 1 fails; the others then end in another way, and node 0's only when told to.
    script = (
        'if [ $GROUP_RANK = 1 ]; then echo broken >&2; exit 7; fi; trap "exit 9" TERM; '
        "sleep 300 & wait"
    )
    done = run_cli(
        "lab", "run", "--nodes", "2", "--workers", "1", "--json", "--", "sh", "-c", script
    )
    assert done.returncode == 7
    said = json.loads(done.stdout)
    assert said["exit_code"] == 7
    assert said["first_failure"] == {"node": 1, "worker": 0, "code": 7}
    assert said["emulation"] == "namespaces"
    assert said["cluster"]["workers_per_node"] == [1, 1]
    assert "[node1:0] broken" in done.stderr.splitlines()
    assert "lab: worker 0 of node 1 failed first, with exit code 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_killed_by_a_signal_counts_as_in_a_shell() -> None:
    # $$ and ${local_rank} are macros to torchrun, and none of the lab's business.
    done = run_cli(
        "lab", "run", "--nodes", "1", "--workers", "1", "--", "sh", "-c", "kill -9 $$${local_rank}"
    )
    assert done.returncode == 128 + 9


def test_a_killed_agent_is_blamed_not_its_workers(start: Start, tmp_path: Path) -> None:
    lab = start(
        *("lab", "run", "--nodes", "2", "--workers", "1", "--json", "--"),
        *("sh", "-c", f"touch {tmp_path}/$RANK; sleep 62.0123"),
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    agents = [
        child
        for child in psutil.Process(lab.process.pid).children()
        if "paceline.lab.agent" in child.cmdline()
        and any("torchrun1" in word for word in child.cmdline())
    ]
    assert len(agents) == 1
    agents[0].kill()
    out, err = lab.process.communicate(timeout=60)
    assert lab.process.returncode == 137
    said = json.loads(out)
    assert said["exit_code"] == 137
    assert said["first_failure"] == {"node": 1, "worker": None, "code": 137}
    assert "lab: the agent of node 1 was killed by signal 9 (exit code 137)" in err


def test_two_labs_at_once(start: Start, tmp_path: Path) -> None:
    # Each waits for the other to be there, so neither can be first.
    script = (
        f"touch {tmp_path}/$0-$RANK; echo here; "
        f"while [ $(ls {tmp_path} | wc -l) -lt 4 ]; do sleep 0.1; done; ls /sys/class/net"
    )
    layout = ["--nodes", "2", "--workers", "1", "--"]
    labs = [start("lab", "run", *layout, "sh", "-c", script, name) for name in ("one", "two")]
    pids = [lab.process.pid for lab in labs]
    for lab in labs:
        lab.wait_for_lines("here", 2)
    for pid in pids:
        assert len(namespaces_of(pid)) in (0, 3)  # 0: it may have ended by now
    assert [lab.finish() for lab in labs] == [0, 0]
    assert namespaces_of(*pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    before = interfaces()
    # The second time, one of the workers would not go.
    stubborn = 'if [ $RANK = 0 ]; then trap "" TERM; fi; ' if number == signal.SIGTERM else ""
    script = f"{stubborn}echo ready; sleep 60.0123; sleep 60.0123"
    lab = start(
        *("lab", "run", "--nodes", "2", "--workers", "1", "--", "sh", "-c", script, str(tmp_path)),
        TMPDIR=str(tmp_path),
    )
    lab.wait_for_lines("ready", 2)
    assert len(namespaces_of(lab.process.pid)) == 3
    assert len(list(tmp_path.iterdir())) > 0
    assert lab.finish(number) == 128 + number
    assert namespaces_of(lab.process.pid) == []
    assert processes_with(str(tmp_path)) == []
    assert interfaces() == before
    assert list(tmp_path.glob("paceline-*")) == []


@pytest.mark.parametrize("emulation", ["namespaces", "software"])
def test_kill_9_ends_the_workers_and_the_next_lab_sweeps(
    start: Start, tmp_path: Path, emulation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = interfaces()
    lab = start(
        *("lab", "run", "--nodes", "2", "--workers", "1", "--emulation", emulation, "--"),
        *("sh", "-c", "echo ready; sleep 61.0123", str(tmp_path)),
        TMPDIR=str(tmp_path),
    )
    lab.wait_for_lines("ready", 2)
    assert lab.finish(signal.SIGKILL) == -signal.SIGKILL
    # By themselves, without another lab.
    wait_until(lambda: processes_with(str(tmp_path)) == [], timeout_s=15)
    left = namespaces_of(lab.process.pid)
    assert len(left) == (3 if emulation == "namespaces" else 0)
    assert len(list(tmp_path.glob(f"paceline-{lab.process.pid}-*"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Lab(lay_out(nodes=1, workers_per_node="1")):
        pass
    assert namespaces_of(lab.process.pid) == []
    assert list(tmp_path.glob("paceline-*")) == []
    assert interfaces() == before
