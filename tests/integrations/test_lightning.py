"""Lightning's Trainer and Fabric with paceline, beside their own DDP; real jobs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from integrations.fleet import run_fleet

pytestmark = pytest.mark.timeout(600)

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    jobs = [
        ("compare", [1, 1]),
        ("compare", [2, 2]),
        ("resume", [2, 2]),
        ("fabric", [2, 2]),
        ("example", [1, 1]),
    ]
    return run_fleet("integrations.lightning_job", jobs, tmp_path_factory.mktemp("lightning"))


@pytest.mark.parametrize("num_workers", [2, 4])
def test_sync_is_what_ddp_is(results: Results, num_workers: int) -> None:
    """With accumulation and clipping: parameters, gradients before clipping, and steps."""
    for worker in results[f"compare/{num_workers}"]:
        ddp, sync = worker["ddp"], worker["paceline_sync"]
        if num_workers == 2:  # a sum of two has one order
            assert torch.equal(sync["parameters"], ddp["parameters"])
        torch.testing.assert_close(sync["parameters"], ddp["parameters"], rtol=1e-3, atol=1e-4)
        assert sync["norms"] == pytest.approx(ddp["norms"], rel=1e-4)
        assert max(ddp["norms"]) > 0.3  # so that clipping had something to do
        assert sync["steps"] == ddp["steps"] == sync["counted"]


@pytest.mark.parametrize("num_workers", [2, 4])
def test_accumulated_gradients_travel_once(results: Results, num_workers: int) -> None:
    for worker in results[f"compare/{num_workers}"]:
        sync = worker["paceline_sync"]
        num_bytes = sync["parameters"].nbytes * sync["steps"]
        assert num_bytes <= sync["bytes"]["world"] < 2 * num_bytes


@pytest.mark.parametrize("num_workers", [2, 4])
def test_workers_end_equal(results: Results, num_workers: int) -> None:
    workers = results[f"compare/{num_workers}"]
    local = [worker["paceline_local_sgd"] for worker in workers]
    assert len({tuple(each["norms"]) for each in local}) == 2  # nodes went their own way
    for each in local:
        assert torch.equal(each["state"], local[0]["state"])
        assert each["val"] == local[0]["val"]
        assert each["steps"] == each["counted"]


@pytest.mark.parametrize("name", ["sync", "daso", "local-sgd"])
def test_resumed_training_is_the_uninterrupted_one(results: Results, name: str) -> None:
    workers = [worker[name] for worker in results["resume/4"]]
    for worker in workers:
        assert torch.equal(worker["whole"], workers[0]["whole"])
        assert torch.equal(worker["resumed"], worker["whole"])
        # The checkpoint of the last step is the finished model.
        assert torch.equal(worker["saved"], worker["whole"])
        assert worker["steps"] == [6, 6]
        assert len(worker["beside"]) == (0 if name == "sync" else 3)


def test_a_checkpoint_goes_with_what_lies_beside_it(results: Results) -> None:
    assert results["resume/4"][0]["latest"] == [".ckpt", ".paceline"]


def test_fabric(results: Results) -> None:
    workers = results["fabric/4"]
    for worker in workers:
        torch.testing.assert_close(
            worker["parameters, paceline_sync"],
            worker["parameters, ddp"],
            rtol=1e-3,
            atol=1e-4,
        )
        for name in ("paceline_sync", "paceline_daso"):
            assert torch.equal(worker[name], workers[0][name])
        for name in ("sync", "local-sgd"):
            assert torch.equal(worker[f"whole, {name}"], workers[0][f"whole, {name}"])
            assert torch.equal(worker[f"resumed, {name}"], worker[f"whole, {name}"])


def test_what_cannot_work_is_refused(results: Results) -> None:
    for said in results["fabric/4"]:
        for name in ("alone", "optimizer alone"):
            assert "fabric.setup(model, optimizer)" in said[name]
        assert "find_unused_parameters" in said["ddp's option"]
        assert "monitor='val_acc'" in said["no such metric"]
        assert set(said["names"]) >= {"paceline_daso", "paceline_sync", "paceline_local_sgd"}
        assert len(said["names"]) >= 12


def test_the_example_runs(results: Results) -> None:
    first, second = results["example/2"]
    assert "accuracy" in first and "accuracy" not in second
