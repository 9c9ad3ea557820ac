"""The recipes for launchers: what each hands to torchrun. The launchers themselves are not here."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.pages import ROOT

FOLDER = ROOT / "examples" / "launch"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Commands in the place of the cluster's: each node's torchrun says what it was given."""
    commands = {
        "scontrol": 'printf "host-a\\nhost-b\\n"',
        "srun": 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
        "torchrun": 'printf "%s|" "$@"; echo',
    }
    for name, text in commands.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def run(script: str, *arguments: str, environment: dict[str, str]) -> list[list[str]]:
    """What each torchrun got."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)
    done = subprocess.run(
        ["bash", "-s", "--", *arguments],
        input=script,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [line.split("|")[:-1] for line in done.stdout.splitlines()]


def test_slurm(environment: dict[str, str]) -> None:
    variables = {
        "SLURM_JOB_NODELIST": "host-[a-b]",
        "SLURM_JOB_ID": "123456",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_GPUS_PER_NODE": "8",
    }
    script = (FOLDER / "slurm.sbatch").read_text()
    arguments = ("train.py", "--name", "two words")
    found = run(script, *arguments, environment={**environment, **variables})
    assert found == [
        [
            *("--nnodes", "2", "--node-rank", rank, "--nproc-per-node", "8"),
            *("--master-addr", "host-a", "--master-port", "23456", *arguments),
        ]
        for rank in ("0", "1")
    ]


def test_skypilot(environment: dict[str, str]) -> None:
    task: dict[str, Any] = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    variables = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_GPUS_PER_NODE": task["resources"]["accelerators"].partition(":")[2],
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.7",
    }
    (found,) = run(task["run"], environment={**environment, **variables})
    assert found == [
        *("--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "8"),
        *("--master-addr", "10.0.0.4", "--master-port", "29500", "train.py"),
    ]


def test_kubernetes_indexed_job() -> None:
    service, job = yaml.safe_load_all((FOLDER / "kubernetes-job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--master-addr={name}-0.{pod['subdomain']}" in container["command"]
    assert f"--nnodes={job['spec']['completions']}" in container["command"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert "--node-rank=$(JOB_COMPLETION_INDEX)" in container["command"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus}" in container["command"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }


def test_kubernetes_pytorchjob() -> None:
    job = yaml.safe_load((FOLDER / "kubernetes-pytorchjob.yaml").read_text())
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert container["command"][0] == "torchrun"
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert job["spec"]["nprocPerNode"] == str(gpus)


def test_the_guide_names_every_recipe() -> None:
    guide = (ROOT / "docs" / "guides" / "launch.md").read_text()
    named = set(re.findall(r"examples/launch/([\w.-]+\w)", guide))
    assert named == {path.name for path in FOLDER.iterdir()}
