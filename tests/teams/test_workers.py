"""How a job's workers find each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import workloads
from hosts import launched, live_on, needs_root
from jobs import DEVICE, run_job, run_launched
from paceline.teams import Workers, find_workers
from paceline.teams.workers import form_workers
from paceline.train import attach


def describe(workers: Workers) -> dict[str, Any]:
    def members(team: Any) -> list[int]:
        ranks = torch.zeros(team.size, dtype=torch.int64)
        team.all_gather(ranks, torch.tensor([workers.world.rank])).wait()
        found: list[int] = ranks.tolist()
        return found

    return {
        "nodes": workers.ranks_by_node,
        "index": workers.node_index,
        "world": members(workers.world),
        "node": members(workers.node),
        "across": members(workers.across),
        "background": (members(workers.background.node), members(workers.background.across)),
        "names": len(workers.node_names),
    }


def expected(nodes: Sequence[Sequence[int]], rank: int) -> dict[str, Any]:
    """Workers of a node are numbered by their ranks, in whatever order they were named."""
    nodes = [sorted(ranks) for ranks in nodes]
    index = next(i for i, ranks in enumerate(nodes) if rank in ranks)
    place = nodes[index].index(rank)
    node = nodes[index]
    across = sorted(ranks[place] for ranks in nodes if place < len(ranks))
    return {
        "nodes": tuple(tuple(ranks) for ranks in nodes),
        "index": index,
        "world": sorted(r for ranks in nodes for r in ranks),
        "node": node,
        "across": across,
        "background": (node, across),
        "names": len(nodes),
    }


def form(_workers: Workers, nodes: Sequence[Sequence[int]]) -> dict[str, Any]:
    return describe(form_workers(nodes))


@pytest.mark.parametrize(
    "nodes", [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[3, 1], [0, 2]], [[0, 1, 2, 3]]]
)
def test_teams_of_given_nodes(nodes: list[list[int]]) -> None:
    for rank, found in enumerate(run_job(form, nodes, nodes=(4,))):
        assert found == expected(nodes, rank)


def form_wrongly(_workers: Workers) -> list[str]:
    messages = []
    for nodes in ([[0]], [[0, 1, 1]], [[0, 1], [2]], [[1], [0, 1]]):
        with pytest.raises(ValueError, match="exactly once") as problem:
            form_workers(nodes)
        messages.append(str(problem.value))
    return messages


def test_nodes_must_name_every_worker_once() -> None:
    for messages in run_job(form_wrongly, nodes=(2,)):
        assert all(message.count("\n") == 0 for message in messages)


def from_mesh(_workers: Workers) -> tuple[dict[str, Any], dict[str, Any], str]:
    mesh = init_device_mesh("cpu", (2, 2))
    flat = init_device_mesh("cpu", (4,))
    with pytest.raises(ValueError, match="two") as problem:
        find_workers(flat)
    # As a user would: attach finds the workers in the mesh.
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "local-sgd", workers=mesh) as pace:
        attached = describe(pace.workers)
    return describe(find_workers(mesh)), attached, str(problem.value)


def test_a_mesh_tells_who_sits_where() -> None:
    for rank, (found, attached, message) in enumerate(run_job(from_mesh, nodes=(4,))):
        assert found == attached == expected([[0, 1], [2, 3]], rank)
        assert "1 dimension" in message


def find_and_describe() -> dict[str, Any]:
    """Nobody has initialised torch.distributed; finding the workers does."""
    assert not dist.is_initialized()
    return describe(find_workers())


@pytest.mark.parametrize("nodes", [[[0, 1], [2]], [[0, 2], [1]]])
def test_slurm_tells_who_sits_where(nodes: list[list[int]]) -> None:
    environments = launched(
        "SLURM_", nodes, rank="PROCID", size="NTASKS", place="LOCALID", node="NODEID"
    )
    for rank, found in enumerate(run_launched(find_and_describe, environments=environments)):
        assert found == expected(nodes, rank)


def test_under_open_mpi_the_hosts_names_tell() -> None:
    # Dealt out like cards, as by --map-by node; all on this one host.
    environments = launched(
        "OMPI_COMM_WORLD_", [[0, 2], [1]], rank="RANK", size="SIZE", place="LOCAL_RANK"
    )
    for rank, found in enumerate(run_launched(find_and_describe, environments=environments)):
        assert found == expected([[0, 1, 2]], rank)


def find_on_host(is_initialised: bool) -> dict[str, Any]:
    """As started by hand, by mp.spawn, or by a launcher that numbers no nodes."""
    live_on(os.environ["TEST_HOST"])
    if is_initialised:
        variables = ("RANK", "WORLD_SIZE")
        rank, size = (int(os.environ.get(name) or os.environ[f"TEST_{name}"]) for name in variables)
        dist.init_process_group("gloo", rank=rank, world_size=size)
    return describe(find_workers())


@needs_root
@pytest.mark.parametrize("told", ["local ranks", "ranks", "nothing"])
def test_where_no_launcher_numbers_nodes_machines_tell(told: str) -> None:
    nodes = [[0, 1], [2]]
    prefix = "TEST_" if told == "nothing" else ""
    names = {"rank": "RANK", "size": "WORLD_SIZE"}
    names |= {"place": "LOCAL_RANK"} if told == "local ranks" else {}
    environments = [
        variables | {"TEST_HOST": "host-a" if rank in nodes[0] else "host-b"}
        for rank, variables in enumerate(launched(prefix, nodes, **names))
    ]
    found = run_launched(find_on_host, told != "local ranks", environments=environments)
    for rank, each in enumerate(found):
        assert each == expected(nodes, rank)


def attach_alone() -> dict[str, Any]:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "daso") as pace:
        for step in range(5):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, 0))
            optimizer.step()
        return describe(pace.workers) | {"steps": pace.stats.num_steps}


def test_without_a_launcher_a_worker_is_alone() -> None:
    (found,) = run_launched(attach_alone, environments=[{}])
    assert found == expected([[0]], 0) | {"steps": 5}


def find_without_address() -> str:
    with pytest.raises(ValueError, match="MASTER_ADDR") as problem:
        find_workers()
    return str(problem.value)


def test_a_missing_address_is_named() -> None:
    variables = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    }
    (message,) = run_launched(find_without_address, environments=[variables])
    assert message.startswith("slurm started 2 workers but MASTER_ADDR is not set")


SCRIPT = """
import os
import torch
import paceline

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with paceline.attach(model, optimizer, "daso") as pace:
    rank = pace.workers.world.rank
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(3, 4) * (rank + 1)).sum().backward()
        optimizer.step()
    pace.finish()
    own = model.weight.sum().item()
    same = pace.workers.world.agree(own, "max") == own
where = f"of {pace.workers.world.size} on {pace.workers.ranks_by_node}"
print(f"worker {rank} {where}: {same}", flush=True)
# Gloo may abort in the interpreter's shutdown when another worker is gone already.
os._exit(0)
"""


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a launcher's job chooses its own devices")
def test_a_script_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # Two processes write to one stream; their line ends may change places.
    for rank in (0, 1):
        assert f"worker {rank} of 2 on ((0, 1),): True" in result.stdout
