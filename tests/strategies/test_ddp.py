"""The synchronous strategies do what torch's DistributedDataParallel does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workloads
from jobs import run_job
from paceline.teams import Workers
from paceline.train import attach

NUM_STEPS = 30
MODELS = ["plain", "frozen", "groups", "shared", "single", "normed", "wide"]


def train_both(
    workers: Workers, strategy: str
) -> list[tuple[str, torch.Tensor, torch.Tensor, list[float], list[float]]]:
    """For each model: parameters and gradient norms of DDP's training, and of the strategy's."""
    results = []
    for index, kind in enumerate(MODELS):
        optimizer_kind = ("momentum", "adamw")[index % 2]
        model, optimizer = workloads.build(kind, optimizer_kind)
        theirs, their_norms = _train(workers, DistributedDataParallel(model), model, optimizer)
        model, optimizer = workloads.build(kind, optimizer_kind, seed=workers.world.rank)
        with attach(model, optimizer, strategy, workers=workers):
            ours, our_norms = _train(workers, model, model, optimizer)
        results.append((kind, theirs, ours, their_norms, our_norms))
    return results


def _train(
    workers: Workers, network: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.Tensor, list[float]]:
    norms = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(network, step, workers.world.rank))
        # Tight enough to clip at nearly every step.
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()]), norms


@pytest.mark.parametrize(
    ("nodes", "strategy"),
    [((2, 2), "sync"), ((2, 2), "sync-hierarchical"), ((2, 1), "sync-hierarchical")],
)
def test_trains_like_ddp_with_clipping(nodes: tuple[int, ...], strategy: str) -> None:
    for results in run_job(train_both, strategy, nodes=nodes):
        for kind, theirs, ours, their_norms, our_norms in results:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, msg=kind)
            assert our_norms == pytest.approx(their_norms, rel=1e-5), kind
            # Every worker clips the same gradient, or the norm would not be the average's.
            assert max(our_norms) > 0.3
