"""Training loops as users write them: each equals one process that sees all workers' data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import reference
import workloads
from jobs import DEVICE, make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import Pace, attach

NUM_STEPS = 12
Optimizer = torch.optim.Optimizer
# Trains one step: model, optimizer, step, this worker's rank, and who is attached.
TrainStep = Callable[[nn.Module, Optimizer, int, int, Pace], None]


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    return workloads.batch_loss(model, step, rank)


def backward(loss: torch.Tensor, *, retain_graph: bool = False) -> None:
    torch.autograd.backward(loss, retain_graph=retain_graph)


def accumulated(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    optimizer.zero_grad()
    with pace.accumulate():
        backward(loss_of(model, 3 * step, rank) / 3)
        with pace.no_sync():
            backward(loss_of(model, 3 * step + 1, rank) / 3)
    backward(loss_of(model, 3 * step + 2, rank) / 3)
    optimizer.step()


def many_passes(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    """The same, by who does not know about accumulate(): exchanged thrice, with one result."""
    optimizer.zero_grad()
    for part in range(3):
        backward(loss_of(model, 3 * step + part, rank) / 3)
    optimizer.step()


def many_losses(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    """All forward passes first."""
    optimizer.zero_grad()
    losses = [loss_of(model, 3 * step + part, rank) / 3 for part in range(3)]
    for loss in losses:
        backward(loss)
    optimizer.step()


def one_graph(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    """Two backward passes through one graph."""
    optimizer.zero_grad()
    loss = sum((loss_of(model, 3 * step + part, rank) / 3 for part in range(3)), torch.zeros(()))
    backward(0.25 * loss, retain_graph=True)
    backward(0.75 * loss)
    optimizer.step()


def zeroed(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    """Gradients keep their memory from step to step."""
    optimizer.zero_grad(set_to_none=False)
    accumulate_all(model, step, rank)
    optimizer.step()


def zeroed_late(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    loss = sum((loss_of(model, 3 * step + part, rank) / 3 for part in range(3)), torch.zeros(()))
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


def with_closure(model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        accumulate_all(model, step, rank)
        return 0.0

    optimizer.step(closure)


def evaluated_between(
    model: nn.Module, optimizer: Optimizer, step: int, rank: int, pace: Pace
) -> None:
    """Between backward pass and step: an evaluation, and a report."""
    optimizer.zero_grad()
    accumulate_all(model, step, rank)
    with torch.no_grad():
        loss_of(model, 0, rank)
    loss_of(model, 0, rank)
    pace.report(1.0)
    optimizer.step()


def accumulate_all(model: nn.Module, step: int, rank: int) -> None:
    for part in range(3):
        backward(loss_of(model, 3 * step + part, rank) / 3)


LOOPS: dict[str, TrainStep] = {
    "accumulated": accumulated,
    "many passes": many_passes,
    "many losses": many_losses,
    "one graph": one_graph,
    "zeroed": zeroed,
    "zeroed late": zeroed_late,
    "with closure": with_closure,
    "evaluated between": evaluated_between,
}


def large_batch_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    return sum(
        (loss_of(model, 3 * step + part, rank) / 3 for part in range(3)),
        torch.zeros((), device=DEVICE),
    )


STRATEGIES: list[tuple[str, dict[str, Any], type[reference.Rule]]] = [
    ("sync", {}, reference.Sync),
    ("local-sgd", {"period": 3}, reference.LocalSgd),
]


def run_loops(workers: Workers) -> dict[tuple[str, str], tuple[torch.Tensor, int, int]]:
    """For every loop and strategy: the end, and how many steps strategy and stats counted."""
    results = {}
    for name, train_step in LOOPS.items():
        for strategy, options, _ in STRATEGIES:
            model, optimizer = workloads.build("plain", "adamw")
            with attach(model, optimizer, strategy, workers=workers, **options) as pace:
                for step in range(1, NUM_STEPS + 1):
                    train_step(model, optimizer, step, workers.world.rank, pace)
                counts = pace.strategy.step, pace.stats.num_steps
            results[name, strategy] = (workloads.flat_state(model), *counts)
    return results


@pytest.fixture(scope="module")
def ends() -> list[dict[tuple[str, str], tuple[torch.Tensor, int, int]]]:
    return run_job(run_loops, nodes=(2, 1))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("strategy", "options", "rule"), STRATEGIES)
def test_loops_equal_one_large_batch(
    ends: list[dict[tuple[str, str], tuple[torch.Tensor, int, int]]],
    loop: str,
    strategy: str,
    options: dict[str, Any],
    rule: type[reference.Rule],
) -> None:
    make_reproducible()
    game = reference.Game((2, 1), lambda: workloads.build("plain", "adamw"))
    expected = reference.play(
        rule(game, **options),
        large_batch_loss,
        NUM_STEPS,
        observe=workloads.flat_state,
        reports={},
    )[-1]
    for rank, by_loop in enumerate(ends):
        end, *counts = by_loop[loop, strategy]
        assert counts == [NUM_STEPS, NUM_STEPS]
        torch.testing.assert_close(end, expected[rank], rtol=1e-6, atol=1e-6)


class Branching(nn.Module):
    """Which branch a batch takes is up to the data; one branch nobody ever takes."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(workloads.NUM_FEATURES, workloads.NUM_OUTPUTS)
        self.right = nn.Linear(workloads.NUM_FEATURES, workloads.NUM_OUTPUTS)
        self.never = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor, goes_left: bool) -> torch.Tensor:
        outputs: torch.Tensor = self.left(inputs) if goes_left else self.right(inputs)
        return outputs


def branching_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    inputs, targets = workloads.make_batch(step, rank)
    # Everybody left, everybody right, or each its own way.
    goes_left = [True, False, rank == 0, rank == 1][step % 4]
    return nn.functional.mse_loss(model(inputs, goes_left), targets)


def build_branching() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = Branching().to(DEVICE)
    # Weight decay moves what has a gradient, be it zero, and leaves what has none.
    return model, torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.2)


def train_branching(
    workers: Workers, strategy: str, options: dict[str, Any]
) -> tuple[list[torch.Tensor], list[list[bool]]]:
    """States after every step, and which parameters then had a gradient."""
    model, optimizer = build_branching()
    states, have_gradients = [], []
    with attach(model, optimizer, strategy, workers=workers, **options):
        for step in range(1, NUM_STEPS + 1):
            optimizer.zero_grad()
            backward(branching_loss(model, step, workers.world.rank))
            have_gradients.append([p.grad is not None for p in model.parameters()])
            optimizer.step()
            states.append(workloads.flat_state(model))
    return states, have_gradients


@pytest.mark.parametrize(("strategy", "options", "rule"), STRATEGIES)
@pytest.mark.parametrize("nodes", [(2,), (2, 2), (2, 1)])
def test_parameters_without_a_gradient(
    nodes: tuple[int, ...], strategy: str, options: dict[str, Any], rule: type[reference.Rule]
) -> None:
    make_reproducible()
    game = reference.Game(nodes, build_branching)
    expected = reference.play(
        rule(game, **options),
        branching_loss,
        NUM_STEPS,
        observe=workloads.flat_state,
        reports={},
    )
    results = run_job(train_branching, strategy, options, nodes=nodes)
    for rank, (states, have_gradients) in enumerate(results):
        for step, state in enumerate(states):
            torch.testing.assert_close(state, expected[step][rank], rtol=1e-6, atol=1e-6)
        for left, _, right, _, never, _ in have_gradients:
            assert left or right
            assert not never
    # In the first steps all go right, then only worker 0 left, then only worker 1.
    assert results[0][1][0] == [False, False, True, True, False, False]
    assert results[0][1][3] == [True, True, False, False, False, False]
    if strategy == "sync":
        assert results[-1][1][1] == [True, True, True, True, False, False]


def train_scheduled(workers: Workers) -> list[str]:
    """Two schedulers; the warnings of steps that came in the wrong order."""
    model, optimizer = workloads.build("groups", "momentum")
    alone, alone_optimizer = workloads.build("groups", "momentum")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedulers = [
            torch.optim.lr_scheduler.SequentialLR(
                each,
                [
                    torch.optim.lr_scheduler.LinearLR(each, 0.1, total_iters=4),
                    torch.optim.lr_scheduler.CosineAnnealingLR(each, NUM_STEPS),
                ],
                milestones=[4],
            )
            for each in (optimizer, alone_optimizer)
        ]
        with attach(model, optimizer, "daso", workers=workers):
            for step in range(NUM_STEPS):
                for net, each in ((model, optimizer), (alone, alone_optimizer)):
                    each.zero_grad()
                    # The same data everywhere: then all of them train like one alone.
                    backward(loss_of(net, step, 0))
                    each.step()
                for scheduler in schedulers:
                    scheduler.step()
        torch.testing.assert_close(
            workloads.flat_state(model), workloads.flat_state(alone), rtol=1e-6, atol=1e-6
        )
    return [str(warning.message) for warning in caught if "optimizer.step" in str(warning.message)]


def test_learning_rate_schedulers() -> None:
    assert run_job(train_scheduled, nodes=(2, 1)) == [[], [], []]


class Checkpointed(nn.Module):
    """The plain model, computed a second time in the backward pass."""

    def __init__(self, model: nn.Module, *, use_reentrant: bool) -> None:
        super().__init__()
        self.model = model
        self.use_reentrant = use_reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # A reentrant checkpoint wants an input with a gradient.
        inputs = inputs.clone().requires_grad_()
        outputs: torch.Tensor = checkpoint(self.model, inputs, use_reentrant=self.use_reentrant)
        return outputs


def train_variants(workers: Workers) -> dict[str, torch.Tensor]:
    """Checkpointed and compiled models, beside the plain one."""
    ends = {}

    def train(name: str, wrap: Callable[[nn.Module], nn.Module], *, attach_wrapped: bool) -> None:
        for strategy in ("sync", "local-sgd"):
            model, optimizer = workloads.build("plain", "adamw")
            network = wrap(model)
            target = network if attach_wrapped else model
            with attach(target, optimizer, strategy, workers=workers):
                for step in range(1, NUM_STEPS + 1):
                    optimizer.zero_grad()
                    backward(loss_of(network, step, workers.world.rank))
                    optimizer.step()
            ends[f"{name} {strategy}"] = workloads.flat_state(model)

    def checkpointed(model: nn.Module) -> nn.Module:
        return Checkpointed(model, use_reentrant=False)

    def reentrant(model: nn.Module) -> nn.Module:
        return Checkpointed(model, use_reentrant=True)

    def compiled(model: nn.Module) -> nn.Module:
        network = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert isinstance(network, nn.Module)
        return network

    train("plain", lambda model: model, attach_wrapped=False)
    train("checkpointed", checkpointed, attach_wrapped=True)
    # The attached model itself is called again inside the backward pass.
    train("checkpointed inside", checkpointed, attach_wrapped=False)
    train("reentrant", reentrant, attach_wrapped=True)
    train("compiled", compiled, attach_wrapped=False)
    train("compiled outside", compiled, attach_wrapped=True)
    return ends


def test_checkpointed_and_compiled_models() -> None:
    for ends in run_job(train_variants, nodes=(2, 1)):
        for name, end in ends.items():
            plain = ends[f"plain {name.split()[-1]}"]
            torch.testing.assert_close(end, plain, rtol=1e-6, atol=1e-6, msg=name)


def train_autocast(workers: Workers) -> torch.Tensor:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "local-sgd", workers=workers, period=3):
        for step in range(1, NUM_STEPS + 1):
            optimizer.zero_grad()
            backward(autocast_loss(model, step, workers.world.rank))
            optimizer.step()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return workloads.flat_state(model)


def autocast_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        inputs, targets = workloads.make_batch(step, rank)
        outputs = model(inputs)
    assert outputs.dtype == torch.bfloat16
    return nn.functional.mse_loss(outputs.float(), targets)


def test_bf16_autocast() -> None:
    make_reproducible()
    game = reference.Game((2, 1), lambda: workloads.build("plain", "momentum"))
    expected = reference.play(
        reference.LocalSgd(game, period=3),
        autocast_loss,
        NUM_STEPS,
        observe=workloads.flat_state,
        reports={},
    )
    for rank, end in enumerate(run_job(train_autocast, nodes=(2, 1))):
        torch.testing.assert_close(end, expected[-1][rank], rtol=1e-4, atol=1e-4)


def train_channels_last(workers: Workers, strategy: str) -> torch.Tensor:
    torch.manual_seed(workers.world.rank)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Conv2d(5, 4, 3, stride=2))
    model.to(DEVICE)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    strides = [p.stride() for p in model.parameters()]
    with attach(model, optimizer, strategy, workers=workers):
        for step in range(1, 7):
            optimizer.zero_grad()
            backward(image_loss(model, step, workers.world.rank))
            assert [p.grad.stride() for p in model.parameters() if p.grad is not None] == strides
            optimizer.step()
    assert [p.stride() for p in model.parameters()] == strides
    return workloads.flat_state(model)


def image_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step + 100 * rank)
    images = torch.randn(2, 3, 9, 9, generator=generator).to(DEVICE)
    loss: torch.Tensor = model(images).square().mean()
    return loss


def build_images() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Conv2d(5, 4, 3, stride=2)).to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("strategy", ["sync", "sync-hierarchical"])
def test_channels_last(strategy: str) -> None:
    make_reproducible()
    expected = reference.play(
        reference.Sync(reference.Game((2, 1), build_images)),
        image_loss,
        6,
        observe=workloads.flat_state,
        reports={},
    )
    for rank, end in enumerate(run_job(train_channels_last, strategy, nodes=(2, 1))):
        torch.testing.assert_close(end, expected[-1][rank], rtol=1e-5, atol=1e-6)


class Mixed(nn.Module):
    """Parameters of many types and layouts, whose gradients are all their own value's."""

    def __init__(self) -> None:
        super().__init__()
        self.real_32 = nn.Parameter(torch.linspace(0.5, 1.0, 5))
        self.real_64 = nn.Parameter(torch.linspace(0.5, 1.0, 7, dtype=torch.float64))
        self.brain_16 = nn.Parameter(torch.linspace(0.5, 1.0, 3, dtype=torch.bfloat16))
        self.real_16 = nn.Parameter(torch.linspace(0.5, 1.0, 2, dtype=torch.float16))
        self.complex_64 = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64))
        self.transposed = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        self.none = nn.Parameter(torch.zeros(0))

    def forward(self, factor: float) -> torch.Tensor:
        parts = [
            (p.abs() if p.is_complex() else p).double().square().sum() for p in self.parameters()
        ]
        return 0.5 * factor * torch.stack(parts).sum()


def train_mixed(workers: Workers, strategy: str, options: dict[str, Any]) -> list[torch.Tensor]:
    model = Mixed().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with attach(model, optimizer, strategy, workers=workers, **options):
        for _ in range(4):
            optimizer.zero_grad()
            backward(model(1.0 + workers.world.rank))
            optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


# Everything shrinks by (1 - lr·factor) at a step; workers' factors are 1 and 2.
@pytest.mark.parametrize(
    ("strategy", "options", "shrink"),
    [
        ("sync", {}, (1 - 0.125 * 1.5) ** 4),
        ("sync-hierarchical", {}, (1 - 0.125 * 1.5) ** 4),
        ("local-sgd", {"period": 4}, ((1 - 0.125) ** 4 + (1 - 0.25) ** 4) / 2),
        ("local-sgd", {"period": 4, "wire": "fp16"}, ((1 - 0.125) ** 4 + (1 - 0.25) ** 4) / 2),
        ("daso", {"warmup_steps": 4}, ((1 - 0.125) / 2 + (1 - 0.25) / 2) ** 4),
    ],
)
def test_parameters_of_many_types(strategy: str, options: dict[str, Any], shrink: float) -> None:
    names = [name for name, _ in Mixed().named_parameters()]
    results = run_job(train_mixed, strategy, options, nodes=(1, 1))
    is_narrow = "wire" in options
    for values in results:
        for name, start, value, first in zip(
            names, Mixed().parameters(), values, results[0], strict=True
        ):
            tolerance = {"real_64": 1e-13, "brain_16": 2e-2, "real_16": 3e-3}.get(name, 1e-6)
            if is_narrow and name != "real_64":
                tolerance = max(tolerance, 1e-3)
            assert value.dtype == start.dtype
            torch.testing.assert_close(
                value, start.detach() * shrink, rtol=tolerance, atol=0.0, msg=name
            )
            assert torch.equal(value, first)
