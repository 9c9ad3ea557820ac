"""Models that another library synchronises too, and models that are attached twice."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import workloads
from jobs import run_job
from paceline.strategies import Daso
from paceline.teams import Workers
from paceline.train import attach

ADVICE = "attach the plain model and do not wrap it"


def refusal(call: Any) -> str:
    with pytest.raises(ValueError) as problem:
        call()
    assert "\n" not in str(problem.value)
    return str(problem.value)


def wrap_in_ddp(workers: Workers) -> list[str]:
    """What is said, by the moment at which the model is wrapped."""
    said = []
    # Before: the wrapper is attached, or what it wraps, or a part of that.
    model, optimizer = workloads.build("plain", "momentum")
    wrapped = DistributedDataParallel(model)
    assert isinstance(model, nn.Sequential)
    for target in (wrapped, nn.Sequential(wrapped), model):
        said.append(refusal(lambda target=target: attach(target, optimizer, workers=workers)))
    said.append(
        refusal(
            lambda: attach(
                model[0], torch.optim.SGD(model[0].parameters()), "sync", workers=workers
            )
        )
    )
    # Afterwards: the model itself, as Accelerate and Fabric do, or something around it.
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "sync", workers=workers):
        said.append(refusal(lambda: DistributedDataParallel(model)))
        outer = DistributedDataParallel(nn.Sequential(model))
        said.append(refusal(lambda: torch.autograd.backward(workloads.batch_loss(outer, 0, 0))))
        del outer
    # Free again: DDP's own training is not disturbed by what was attached before.
    outer = DistributedDataParallel(model)
    torch.autograd.backward(workloads.batch_loss(outer, 0, workers.world.rank))
    return said


def test_ddp_is_refused_whenever_it_comes() -> None:
    for said in run_job(wrap_in_ddp, nodes=(1, 1)):
        assert len(said) == 6
        assert all(ADVICE in text for text in said)


class HalfIgnored(nn.Module):
    """DDP may have what it is told to leave alone attached to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = nn.Linear(workloads.NUM_FEATURES, 4)
        self.theirs = nn.Linear(4, workloads.NUM_OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.theirs(torch.tanh(self.ours(inputs)))
        return outputs


def share_with_ddp(workers: Workers) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = HalfIgnored()
    ignored = ["ours.weight", "ours.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
        model, ignored
    )
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.ours.parameters(), lr=0.1)
    attach(model.ours, optimizer, "sync", workers=workers)
    torch.autograd.backward(workloads.batch_loss(wrapped, 0, workers.world.rank))
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_what_ddp_leaves_alone_may_be_attached() -> None:
    torch.manual_seed(0)
    model = HalfIgnored()
    torch.autograd.backward(
        (workloads.batch_loss(model, 0, 0) + workloads.batch_loss(model, 0, 1)) / 2
    )
    for gradients in run_job(share_with_ddp, nodes=(1, 1)):
        for found, parameter in zip(gradients, model.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-7)


def attach_twice(workers: Workers) -> list[str]:
    model, optimizer = workloads.build("plain", "momentum")
    assert isinstance(model, nn.Sequential)
    other = torch.optim.SGD(model[2].parameters(), lr=0.1)
    strategy = Daso()
    pace = attach(model, optimizer, strategy, workers=workers)
    said = [
        refusal(lambda: attach(model, other, "sync", workers=workers)),
        refusal(lambda: attach(model[2], other, "sync", workers=workers)),
        refusal(lambda: attach(workloads.build_model("plain"), other, "sync", workers=workers)),
    ]
    pace.detach()
    said.append(refusal(lambda: attach(model, optimizer, strategy, workers=workers)))
    attach(model, optimizer, Daso(), workers=workers).detach()
    return said


def test_a_model_or_a_strategy_is_attached_once() -> None:
    for twice, part, foreign, strategy in run_job(attach_twice, nodes=(1, 1)):
        assert "attached already, with Daso" in twice and "[first, second]" in twice
        assert "attached already" in part
        assert "2 parameters that the model does not have" in foreign
        assert "has been attached before" in strategy


class Sharded(nn.Module):
    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.weight = parameter


def attach_odd_models(workers: Workers) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    sharded = Sharded(nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])))
    models = [sharded, nn.Sequential(nn.Embedding(5, 2, sparse=True)), nn.LazyLinear(3)]
    return [
        refusal(
            lambda model=model: attach(
                model, torch.optim.SGD(model.parameters(), lr=0.1), "sync", workers=workers
            )
        )
        for model in models
    ]


def test_models_whose_gradients_cannot_be_exchanged_are_refused() -> None:
    for sharded, sparse, lazy in run_job(attach_odd_models, nodes=(1, 1)):
        assert "DTensors as parameters that fully_shard has not made" in sharded
        assert "sparse=False" in sparse
        assert "call the model once" in lazy


def sparse_gradient(workers: Workers) -> str:
    """Somebody calls for it without the module that would tell."""
    model = nn.Linear(2, 5)
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "sync", workers=workers)
    rows = nn.functional.embedding(torch.tensor([1, 3]), model.weight, sparse=True)
    return refusal(lambda: torch.autograd.backward(rows.sum()))


def test_a_sparse_gradient_is_refused() -> None:
    assert "sparse=False" in run_job(sparse_gradient, nodes=(1,))[0]


def no_optimizer(workers: Workers) -> list[str]:
    model = nn.Linear(2, 2)
    optimizer: Any = "adamw"
    return [
        refusal(lambda: attach(model, [], "sync", workers=workers)),
        refusal(lambda: attach(model, [optimizer], "sync", workers=workers)),
    ]


def test_an_optimizer_is_needed() -> None:
    none, odd = run_job(no_optimizer, nodes=(1,))[0]
    assert "needs an optimizer" in none
    assert "torch.optim.Optimizer" in odd


def copy_attached(workers: Workers) -> list[torch.Tensor]:
    """Copies of an attached model are plain models; the original trains on."""
    model, optimizer = workloads.build("normed", "momentum")
    with attach(model, optimizer, "daso", workers=workers, warmup_steps=1):

        def train(step: int) -> None:
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()

        averaged = AveragedModel(model)
        for step in range(3):
            train(step)
            averaged.update_parameters(model)
        file = io.BytesIO()
        torch.save(model, file)
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        copied = copy.deepcopy(model)
        copied_optimizer = copy.deepcopy(optimizer)
        for one in (copied, saved):
            assert torch.equal(workloads.flat_state(one), workloads.flat_state(model))
            # It trains alone: no hook is left that would call the other workers.
            if workers.world.rank == 0:
                torch.autograd.backward(workloads.batch_loss(one, 0, 0))
            DistributedDataParallel(one)
        assert copied_optimizer.state_dict()["state"].keys()
        train(3)
    return [workloads.flat_state(model), workloads.flat_state(averaged.module)]


def test_attached_models_are_copied_saved_and_averaged() -> None:
    results = run_job(copy_attached, nodes=(1, 1))
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][0], results[0][1])
