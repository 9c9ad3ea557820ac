"""Optimizers that get a closure after gradients have been accumulated, as Lightning does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import workloads
from jobs import run_job
from paceline.teams import Workers
from paceline.train import attach


def train(workers: Workers, does_backward: bool) -> dict[str, Any]:
    """Two batches per step: the first accumulated, the second in the closure, or before it too."""
    model, optimizer = workloads.build("plain", "momentum")
    rank = workers.world.rank
    with attach(model, optimizer, "sync", workers=workers) as pace:
        for step in range(0, 6, 2):
            optimizer.zero_grad()
            with pace.no_sync():
                torch.autograd.backward(workloads.batch_loss(model, step, rank) / 2)
                if not does_backward:
                    torch.autograd.backward(workloads.batch_loss(model, step + 1, rank) / 2)

            def closure(step: int = step) -> torch.Tensor:
                loss = workloads.batch_loss(model, step + 1, rank) / 2
                if does_backward:
                    torch.autograd.backward(loss)
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
        num_bytes = pace.stats.bytes_by_team["world"]
    return {"state": workloads.flat_state(model), "bytes": num_bytes}


def train_alone() -> torch.Tensor:
    model, optimizer = workloads.build("plain", "momentum")
    for step in range(0, 6, 2):
        optimizer.zero_grad()
        losses = [
            workloads.batch_loss(model, step + part, rank) for part in (0, 1) for rank in (0, 1)
        ]
        torch.autograd.backward(torch.stack(losses).mean())
        optimizer.step()
    return workloads.flat_state(model)


@pytest.mark.parametrize("does_backward", [True, False])
def test_accumulated_gradients_are_exchanged_once(does_backward: bool) -> None:
    expected = train_alone()
    num_bytes = 4 * expected.numel()
    for worker in run_job(train, does_backward, nodes=(1, 1)):
        torch.testing.assert_close(worker["state"], expected, rtol=1e-5, atol=1e-6)
        # A bucket holds a little more than the gradients, and attach takes over parameters once.
        assert 3 * num_bytes <= worker["bytes"] < 6 * num_bytes
