"""Algorithms for one process, on a real job's objective: the same as in one process on all data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional as F  # noqa: N812

from jobs import make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import attach

COUNTS = (13, 0, 7, 11)  # one worker has nothing at all
LAYOUT = (2, 1, 1)
NUM_SAMPLES = sum(COUNTS)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.unused = nn.Linear(2, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


def samples_of(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(COUNTS[rank], 6, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(3, (COUNTS[rank],), generator=generator)


def all_samples() -> tuple[torch.Tensor, torch.Tensor]:
    """In the documented order: sample j of a worker with n at (j + 1/2) / n, then by rank."""
    parts = [samples_of(rank) for rank in range(len(COUNTS))]
    row = sorted(((j + 0.5) / n, rank, j) for rank, n in enumerate(COUNTS) for j in range(n))
    inputs = torch.stack([parts[rank][0][j] for _, rank, j in row])
    return inputs, torch.stack([parts[rank][1][j] for _, rank, j in row])


def loss_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        decay = sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        return F.cross_entropy(model(x), y) + 0.01 * decay

    return loss


# Each trains a model on closures, or on a function of a vector, as a program for one process does.

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, history_size=5),
    "lbfgs-search": lambda p: torch.optim.LBFGS(
        p, max_iter=6, history_size=5, line_search_fn="strong_wolfe"
    ),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.05),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
}
METHODS = ("CG", "BFGS", "L-BFGS-B", "Newton-CG")
# No longer: in a fourth epoch Newton-CG has converged, and its next step is rounding. One process
# with its samples in another order then differs by 1e-6 as well.
INTERVALS: dict[str, tuple[Any, int]] = {"epoch": ("epoch", 3), "block": (9, 2), "sample": (1, 1)}
CASES = [
    *[(name, interval) for name in OPTIMIZERS for interval in ("epoch", "block")],
    ("sgd", "sample"),
    *[(method, interval) for method in METHODS for interval in ("epoch", "block")],
]


def solve(method: str, fun: Any, x: Any, hessp: Any) -> Any:
    hessian = {"hessp": hessp} if method == "Newton-CG" else {}
    return minimize(fun, x, jac=True, method=method, options={"maxiter": 4}, **hessian).x


def train_all(workers: Workers) -> list[tuple[np.ndarray[Any, Any], int, bool]]:
    results = []
    rank = workers.world.rank
    for name, interval_name in CASES:
        interval, num_epochs = INTERVALS[interval_name]
        model = Net()
        if rank > 0:
            next(model.parameters()).data.mul_(2)  # attaching makes them equal
        optimizer = OPTIMIZERS[name](model.parameters()) if name in OPTIMIZERS else None
        num_seen = 0
        with attach(model, optimizer, "sync", workers=workers) as pace:
            objective = pace.objective(
                loss_of(model), samples_of(rank), interval=interval, batch_size=4
            )
            for _ in range(num_epochs):
                for block in objective:
                    num_seen += block.num_samples
                    if optimizer is not None:
                        loss = optimizer.step(block)
                        assert torch.is_tensor(loss)
                    else:
                        block.x = solve(name, block, block.x, block.hessp)
            num_steps = pace.strategy.step
        assert num_seen == num_epochs * NUM_SAMPLES
        results.append((objective.x, num_steps, torch.is_grad_enabled()))
    return results


def train_alone(name: str, interval_name: str) -> np.ndarray[Any, Any]:
    make_reproducible()
    model, (inputs, targets) = Net(), all_samples()
    loss_fn, parameters = loss_of(model), list(model.parameters())
    interval, num_epochs = INTERVALS[interval_name]
    size = NUM_SAMPLES if interval == "epoch" else interval
    optimizer = OPTIMIZERS[name](parameters) if name in OPTIMIZERS else None

    def vector(tensors: Any) -> np.ndarray[Any, Any]:
        return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().copy()

    for _ in range(num_epochs):
        for start in range(0, NUM_SAMPLES, size):
            x, y = inputs[start : start + size], targets[start : start + size]

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                model.zero_grad()
                loss = loss_fn(x, y)
                torch.autograd.backward(loss)
                return loss

            def move(values: np.ndarray[Any, Any]) -> None:
                nn.utils.vector_to_parameters(torch.from_numpy(values.copy()), parameters)

            def fun(values: np.ndarray[Any, Any], closure: Any = closure) -> Any:
                move(values)
                return float(closure().detach()), vector([p.grad for p in parameters])

            def hessp(
                values: Any, along: Any, x: torch.Tensor = x, y: torch.Tensor = y
            ) -> np.ndarray[Any, Any]:
                move(values)
                gradients = torch.autograd.grad(loss_fn(x, y), parameters, create_graph=True)
                flat = torch.cat([g.reshape(-1) for g in gradients])
                return vector(torch.autograd.grad(flat @ torch.from_numpy(along), parameters))

            if optimizer is not None:
                optimizer.step(closure)
            else:
                move(solve(name, fun, vector(parameters), hessp))
    return vector(parameters)


@functools.cache
def trained() -> list[list[tuple[np.ndarray[Any, Any], int, bool]]]:
    return run_job(train_all, nodes=LAYOUT)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_equals_one_process_on_all_data(case: tuple[str, str]) -> None:
    expected = train_alone(*case)
    place = CASES.index(case)
    ends = [results[place][0] for results in trained()]
    for end in ends:
        assert np.array_equal(end, ends[0]), "workers differ in some bit"
    np.testing.assert_allclose(ends[0], expected, rtol=1e-6, atol=1e-6)
    start = torch.cat([p.detach().reshape(-1) for p in Net().parameters()]).numpy()
    assert np.abs(ends[0] - start).max() > 0.01, "it has trained"
    if case[0] in OPTIMIZERS:
        interval, num_epochs = INTERVALS[case[1]]
        size = NUM_SAMPLES if interval == "epoch" else interval
        assert trained()[0][place][1] == num_epochs * -(-NUM_SAMPLES // size)


def search_with_own_loop(workers: Workers) -> tuple[torch.Tensor, list[str]]:
    """A closure of the user's own, under attach: each worker sees its own batch alone."""
    rank, model = workers.world.rank, Net()
    x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    y = torch.arange(8) % 3
    optimizer = OPTIMIZERS["lbfgs-search"](model.parameters())
    with attach(model, optimizer, "sync", workers=workers) as pace:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)(x, y)
            torch.autograd.backward(loss)
            return loss

        for _ in range(3):
            optimizer.step(closure)
        end = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

        said = []
        objective = pace.objective(loss_of(model), {"x": x, "y": y})
        for wrong in (
            lambda: objective(np.zeros(3)),
            lambda: objective(objective.x + rank),
            lambda: pace.objective(loss_of(model), (x, y[:3])),
            lambda: pace.objective(loss_of(model), x, interval=0),
        ):
            with pytest.raises(ValueError, match=r".+") as error:
                wrong()
            said.append(str(error.value))
    with (
        attach(model, None, "local-sgd", workers=workers) as pace,
        pytest.raises(ValueError, match="LocalSgd lets workers differ; attach with strategy='syn"),
    ):
        pace.objective(loss_of(model), (x, y))
    return end, said


def test_a_closure_of_ones_own_and_mistakes() -> None:
    results = run_job(search_with_own_loop, nodes=(1, 1))
    make_reproducible()
    model = Net()
    parts = [
        torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
        for rank in range(2)
    ]
    optimizer = OPTIMIZERS["lbfgs-search"](model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)(torch.cat(parts), (torch.arange(8) % 3).repeat(2))
        torch.autograd.backward(loss)
        return loss

    for _ in range(3):
        optimizer.step(closure)
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][0], expected, rtol=1e-6, atol=1e-6)
    for _, said in results:
        assert said[0].startswith("the model has 59 trainable values, and was given a vector of")
        assert "asked for the objective at different points" in said[1]
        assert said[2].startswith("the objective's tensors have 3 and 8 samples")
        assert said[3] == "interval=0 must be 'epoch' or a number of samples"


def test_alone_a_data_set_will_do() -> None:
    model = Net()
    inputs, targets = samples_of(0)
    data = [(inputs[i], targets[i]) for i in range(len(inputs))]
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    pace = attach(model, optimizer, "sync", enabled=False)
    loss = pace.objective(loss_of(model), data)()
    torch.testing.assert_close(loss, loss_of(model)(inputs, targets).detach())
    assert all(p.grad is not None for p in model.parameters())
