"""The Hugging Face Trainer with paceline, beside the Trainer alone with DDP; real jobs."""

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
        ("compare_more", [1, 1]),
        ("resume", [2, 2]),
        ("refuse", [1, 1]),
        ("example", [1, 1]),
    ]
    return run_fleet("integrations.huggingface_job", jobs, tmp_path_factory.mktemp("hf"))


@pytest.mark.parametrize("num_workers", [2, 4])
def test_sync_is_what_ddp_is(results: Results, num_workers: int) -> None:
    """With accumulation, clipping, token-weighted losses and evaluation."""
    for worker in results[f"compare/{num_workers}"]:
        ddp, sync = worker["ddp"], worker["sync"]
        assert ddp["wrapper"] == "DistributedDataParallel"
        assert sync["wrapper"] == "GPT2LMHeadModel"
        if num_workers == 2:  # a sum of two has one order
            assert torch.equal(sync["parameters"], ddp["parameters"])
        torch.testing.assert_close(sync["parameters"], ddp["parameters"], rtol=1e-3, atol=5e-5)
        for figure in ("losses", "norms", "eval"):
            assert sync[figure] == pytest.approx(ddp[figure], rel=1e-4)
        assert max(ddp["norms"]) > 0.5  # so that clipping had something to do


@pytest.mark.parametrize("num_workers", [2, 4])
def test_workers_count_by_their_tokens(results: Results, num_workers: int) -> None:
    """Each node counts its own tokens, and the average is over all tokens."""
    for worker in results[f"compare/{num_workers}"]:
        expected, found = worker["ddp, sgd"], worker["local-sgd, sgd"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)
    counts = {worker["num_tokens"] for worker in results[f"compare/{num_workers}"]}
    assert len(counts) > 1  # so that weights had something to do


def test_a_users_own_trainer(results: Results) -> None:
    for worker in results["compare_more/2"]:
        for name in ("sync", "sync-hierarchical"):
            assert torch.equal(worker[name], worker[None])


@pytest.mark.parametrize("name", ["sync", "daso", "local-sgd"])
def test_resumed_training_is_the_uninterrupted_one(results: Results, name: str) -> None:
    workers = [worker[name] for worker in results["resume/4"]]
    for worker in workers:
        assert torch.equal(worker["whole"], workers[0]["whole"])
        assert torch.equal(worker["resumed"], worker["whole"])
        # The checkpoint of the last step is the finished model.
        assert torch.equal(worker["saved"], worker["whole"])
        assert worker["steps"] == [6, 6]
        assert "paceline.pt" in worker["files"]
        assert ("paceline" in worker["files"]) == (name != "sync")
        assert {"paceline_step_s", "paceline_waiting_s", "paceline_bytes"} <= set(worker["logged"])


def test_what_cannot_work_is_refused(results: Results) -> None:
    for said in results["refuse/2"]:
        assert "periode" in said["unknown option"]
        assert "enabled" in said["enabled"]
        assert "Diloco" in said["another strategy"] and "LocalSgd" in said["another strategy"]
        assert "begins at its first step" in said["checkpoint of another"]
        assert "boom" in said["error"]


def test_a_second_training_begins_anew(results: Results) -> None:
    for worker in results["refuse/2"]:
        first, second = worker["twice"]
        assert first == 2 and second == 2


def test_the_example_runs(results: Results) -> None:
    first, second = results["example/2"]
    assert "eval loss" in first and "eval loss" not in second
