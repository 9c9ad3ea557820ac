"""Our LocalSGD beside Accelerate's own, and its wrappers given to ``attach``; real jobs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from integrations.fleet import run_fleet

pytestmark = pytest.mark.timeout(600)

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    jobs = [("compare", [1, 1]), ("compare", [2, 2]), ("wrappers", [1, 1]), ("example", [1, 1])]
    return run_fleet("integrations.accelerate_job", jobs, tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize(
    ("name", "reference"), [("ours", "theirs"), ("sync", "ddp"), ("disabled", "ddp")]
)
def test_the_same_as_accelerate(
    results: Results, num_workers: int, name: str, reference: str
) -> None:
    """With accumulation and clipping, and DDP's gradients after the context."""
    for worker in results[f"compare/{num_workers}"]:
        found, expected = worker[name], worker[reference]
        if num_workers == 2:  # a sum of two has one order
            assert torch.equal(found["parameters"], expected["parameters"])
        for figure in ("parameters", "gradients"):
            torch.testing.assert_close(found[figure], expected[figure], rtol=1e-4, atol=1e-5)
        assert found["steps"] == expected["steps"] == 7


@pytest.mark.parametrize("num_workers", [2, 4])
def test_workers_end_equal(results: Results, num_workers: int) -> None:
    workers = results[f"compare/{num_workers}"]
    for name in ("sync", "local-sgd", "daso", "diloco"):
        for worker in workers:
            assert torch.equal(worker[name]["parameters"], workers[0][name]["parameters"])
            assert worker[name]["counted"] == 7
        assert name == "sync" or not torch.equal(
            workers[0][name]["parameters"], workers[0]["ddp"]["parameters"]
        )


def test_in_a_node_gradients_are_averaged(results: Results) -> None:
    """Nodes are the units, unless workers= says otherwise."""
    worker = results["compare/4"][0]
    assert not torch.equal(worker["local-sgd"]["parameters"], worker["theirs"]["parameters"])


def test_wrappers_work_or_are_refused(results: Results) -> None:
    for worker in results["wrappers/2"]:
        for name in ("ddp", "inside ddp"):
            assert "paceline.integrations" in worker[name]
        for name in ("prepared optimizer", "compiled"):
            assert torch.equal(worker[name], worker["expected"])
        torch.testing.assert_close(worker["peft, sync"], worker["peft, ddp"])
        assert not torch.equal(worker["peft, local-sgd"], worker["peft, ddp"])
        assert torch.equal(worker["peft, local-sgd"], results["wrappers/2"][0]["peft, local-sgd"])


def test_what_cannot_work_is_refused(results: Results) -> None:
    for said in results["wrappers/2"]:
        assert "has prepared no optimizer" in said["no optimizer"]
        assert "'sync' has no period" in said["no period"]
        assert "local_sgd_steps=None" in said["object"]


def test_without_its_library_an_integration_names_the_extra() -> None:
    script = """
import sys
for name in ("transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric"):
    sys.modules[name] = None
import importlib
for name in ("huggingface", "accelerate", "lightning", "fabric"):
    try:
        importlib.import_module(f"paceline.integrations.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines() == [
        "transformers is not installed: pip install 'paceline[hf]'",
        "accelerate is not installed: pip install 'paceline[accelerate]'",
        "lightning is not installed: pip install 'paceline[lightning]'",
        "lightning is not installed: pip install 'paceline[lightning]'",
    ]


def test_the_example_runs(results: Results) -> None:
    first, second = results["example/2"]
    assert first == second  # accelerator.print: one worker of each machine
    assert "accuracy" in first
