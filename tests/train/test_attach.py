"""Attaching leaves the model and the loop the user's, and detaching leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import paceline
import workloads
from jobs import run_job
from paceline.strategies import Daso, strategy_names
from paceline.strategies.registry import _STRATEGIES
from paceline.teams import Workers
from paceline.train import Pace, attach


def num_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    of_parameters = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    of_modules = sum(
        len(hooks)
        for module in model.modules()
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._backward_hooks,
            module._state_dict_hooks,
        )
    )
    of_optimizers = len(optimizer._optimizer_step_post_hooks) + len(
        optimizer._optimizer_step_pre_hooks
    )
    of_all_optimizers = len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)
    of_scaler = int(torch.amp.GradScaler.step.__module__.startswith("paceline"))
    of_ddp = int(hasattr(model, "_ddp_params_and_buffers_to_ignore"))
    return of_parameters + of_modules + of_optimizers + of_all_optimizers + of_scaler + of_ddp


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(workloads.batch_loss(model, step, rank))
    optimizer.step()


def come_and_go(workers: Workers, strategy: str) -> None:
    """Attach, train, detach: model and optimizer are as they were before, but trained."""
    model, optimizer = workloads.build("normed", "momentum")
    classes, keys = [type(m) for m in model.modules()], list(model.state_dict())
    parameters = list(model.parameters())
    pace = attach(model, optimizer, strategy, workers=workers)
    assert num_hooks(model, optimizer) > len(parameters)
    assert [type(m) for m in model.modules()] == classes
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    for step in range(3):
        train_step(model, optimizer, step, workers.world.rank)
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    pace.finish()
    pace.detach()
    pace.detach()  # harmless

    assert num_hooks(model, optimizer) == 0
    assert list(model.state_dict()) == keys
    # Gradients are still there, and each has memory of its own again.
    for parameter, before in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, before)
        assert parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
    # Training goes on alone: other data on each worker, other parameters.
    for step in range(3):
        train_step(model, optimizer, step, workers.world.rank)
    assert pace.stats.num_steps == 3
    mean = workers.world.agree(parameters[0].sum().item())
    assert mean != pytest.approx(parameters[0].sum().item(), rel=1e-6)
    # And it can be attached again (with an optimizer that has not learnt other things elsewhere).
    optimizer = workloads.build_optimizer("momentum", model)
    with attach(model, optimizer, strategy, workers=workers):
        train_step(model, optimizer, 7, workers.world.rank)
    assert num_hooks(model, optimizer) == 0
    assert workers.world.agree(parameters[0].sum().item(), "max") == parameters[0].sum().item()


@pytest.mark.parametrize("strategy", strategy_names())
def test_detaching_leaves_no_trace(strategy: str) -> None:
    run_job(come_and_go, strategy, nodes=(1, 1))


def leave_by_an_error(workers: Workers) -> int:
    """An error on one worker must not make it wait for the others."""
    model, optimizer = workloads.build("plain", "momentum")
    with (
        pytest.raises(KeyError, match="mine"),
        attach(model, optimizer, "local-sgd", workers=workers, period=3),
    ):
        train_step(model, optimizer, 0, workers.world.rank)
        if workers.world.rank == 0:
            raise KeyError("mine")
        # The other one ends as well; what it would exchange at its end, nobody answers.
        raise KeyError("mine too")
    return num_hooks(model, optimizer)


def test_an_error_inside_the_context_detaches_without_exchanging() -> None:
    assert run_job(leave_by_an_error, nodes=(1, 1)) == [0, 0]


def test_a_disabled_pace_lets_errors_pass() -> None:
    model, optimizer = workloads.build("plain", "momentum")
    with pytest.raises(KeyError, match="labels"), attach(model, optimizer, enabled=False):
        raise KeyError("labels")


def test_a_disabled_pace_has_a_strategy_and_one_worker_without_a_process_group() -> None:
    model, optimizer = workloads.build("plain", "momentum")
    with attach(model, optimizer, "daso", enabled=False, period=6) as pace:
        assert pace.strategy.status()["period"] == 6
        assert (pace.workers.world.size, pace.workers.world.rank) == (1, 0)
        assert (pace.workers.num_nodes, pace.workers.node_index) == (1, 0)
        # A script that talks to the others goes on by itself.
        for team in (pace.workers.world, pace.workers.node, pace.workers.across):
            tensor, whole = torch.tensor([3.0, 4.0]), torch.zeros(2)
            team.all_reduce(tensor, "mean").wait()
            team.broadcast(tensor, 0).wait()
            team.all_gather(whole, tensor).wait()
            team.reduce_scatter(tensor, 2 * whole).wait()
            team.barrier()
            assert tensor.tolist() == [6.0, 8.0]
            assert (team.agree(2.5, "sum"), team.gather(b"me")) == (2.5, [b"me"])
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="nobody to send to"):
        pace.workers.world.send(torch.ones(1), 1)


def attach_disabled(workers: Workers, folder: str) -> None:
    model, optimizer = workloads.build("plain", "momentum", seed=workers.world.rank)
    alone, alone_optimizer = workloads.build("plain", "momentum", seed=workers.world.rank)
    with attach(model, optimizer, "daso", enabled=False) as pace:
        assert isinstance(pace, Pace)
        assert num_hooks(model, optimizer) == 0
        for step in range(4):
            with pace.no_sync(), pace.accumulate(), pace.join():
                train_step(model, optimizer, step, workers.world.rank)
            train_step(alone, alone_optimizer, step, workers.world.rank)
            pace.report(1.0)
        pace.load_state_dict(pace.state_dict())
        if workers.world.rank == 0:
            pace.save(folder)
            train_step(model, optimizer, 9, 0)
            pace.load(folder)
    assert torch.equal(workloads.flat_state(model), workloads.flat_state(alone))
    assert pace.stats.num_steps == 0


def test_disabled_is_a_no_op(tmp_path_factory: pytest.TempPathFactory) -> None:
    run_job(attach_disabled, str(tmp_path_factory.mktemp("idle")), nodes=(2,))


def train_alone(workers: Workers, strategy: str) -> bool:
    """A world of one trains exactly as without us."""
    model, optimizer = workloads.build("normed", "adamw")
    alone, alone_optimizer = workloads.build("normed", "adamw")
    with attach(model, optimizer, strategy, workers=workers) as pace:
        for step in range(40):
            train_step(model, optimizer, step, 0)
            train_step(alone, alone_optimizer, step, 0)
            pace.report(1.0)
    return torch.equal(workloads.flat_state(model), workloads.flat_state(alone))


@pytest.mark.parametrize("strategy", strategy_names())
def test_a_world_of_one(strategy: str) -> None:
    assert run_job(train_alone, strategy, nodes=(1,)) == [True]


def start_unequal(workers: Workers) -> dict[str, Any]:
    """Everybody starts from the first worker's parameters (frozen too), buffers and counters."""
    model = workloads.build_model("normed", seed=workers.world.rank)
    next(model.parameters()).requires_grad_(False)
    buffers = dict(model.named_buffers())
    buffers["1.running_mean"].fill_(float(workers.world.rank + 3))
    buffers["1.num_batches_tracked"].fill_(workers.world.rank + 5)
    trainable = [p for p in model.parameters() if p.requires_grad]
    pace = attach(model, torch.optim.SGD(trainable, lr=0.1), "daso", workers=workers)
    pace.detach()
    return {name: value.tolist() for name, value in model.state_dict().items()}


def test_attaching_makes_workers_equal() -> None:
    first, *others = run_job(start_unequal, nodes=(2, 1))
    assert all(other == first for other in others)
    assert first["1.running_mean"] == [3.0] * 5
    assert first["1.num_batches_tracked"] == 5


def nothing_to_train(workers: Workers) -> None:
    model, optimizer = workloads.build("plain", "momentum")
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        attach(model, optimizer, "daso", workers=workers)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    run_job(nothing_to_train, nodes=(1,))


def too_many_fragments(workers: Workers) -> None:
    model, optimizer = workloads.build_drift()
    with pytest.raises(ValueError, match="2 fragments are more than the model's 1"):
        attach(model, optimizer, "streaming-diloco", workers=workers, fragments=2)


def test_more_fragments_than_parameters_are_refused() -> None:
    run_job(too_many_fragments, nodes=(1,))


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("dasso", {}, "did you mean 'daso'"),
    ("sync-hierarchic", {}, "did you mean 'sync-hierarchical'"),
    ("x", {}, "known are sync, sync-hierarchical"),
    ("daso", {"perod": 4}, "perod"),
    ("sync", {"period": 4}, "period"),
    ("daso", {"period": 0}, "period"),
    ("daso", {"period": 2.5}, "period"),
    ("daso", {"period": "4"}, "period"),
    ("daso", {"delay": 5}, "delay=5 must not be longer than period=4"),
    ("streaming-diloco", {"period": 8, "delay": 9}, "delay=9 must not be longer than period=8"),
    ("streaming-diloco", {"period": 3, "fragments": 4, "delay": 0}, "4 fragments"),
    ("daso", {"merge": "best"}, "merge"),
    ("daso", {"wire": "fp8"}, "wire"),
    ("daso", {"threshold": 1.5}, "threshold"),
    ("daso", {"rate_bytes_per_s": 0}, "rate_bytes_per_s"),
    ("daso", {"warmup_epochs": 1}, "warmup_epochs needs steps_per_epoch"),
    ("daso", {"warmup_epochs": 1, "warmup_steps": 1, "steps_per_epoch": 2}, "not both"),
    ("daso", {"total_steps": 0}, "total_steps"),
    ("diloco", {"outer_momentum": 1.0}, "outer_momentum"),
    ("post-local-sgd", {"sync_steps": -1}, "sync_steps"),
    ("daso", {"buffers": "sum"}, "buffers='sum' is not known"),
    ("daso", {"report_every": 0}, "report_every=0"),
]


@pytest.mark.parametrize(("strategy", "options", "named"), BAD_OPTIONS)
def test_bad_options_are_named_in_one_line(
    strategy: str, options: dict[str, Any], named: str
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=named) as problem:
        attach(model, optimizer, strategy, **options)
    assert "\n" not in str(problem.value)
    assert num_hooks(model, optimizer) == 0


def test_a_strategy_object_takes_no_further_options() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"options period to the strategy object itself: Daso"):
        attach(model, torch.optim.SGD(model.parameters()), Daso(), period=3)


class EveryThird(paceline.Strategy):
    """A user's own: every third step, all workers take their average."""

    summary = "a test's"

    def after_step(self) -> None:
        super().after_step()
        if self.step % 3 == 0:
            for parameter in self.replica.parameters:
                self.wait(self.workers.world.all_reduce(parameter.detach(), "mean"))


def train_with_own(workers: Workers) -> list[float]:
    paceline.register_strategy("every-third")(EveryThird)
    model, optimizer = workloads.build_drift()
    values = []
    with attach(model, optimizer, "every-third", workers=workers):
        for _ in range(7):
            optimizer.zero_grad()
            torch.autograd.backward(model(1.0 + workers.world.rank))
            optimizer.step()
            values.append(model.values.item())
    return values


def test_a_users_strategy_trains_by_its_name() -> None:
    for rank, values in enumerate(run_job(train_with_own, nodes=(2, 1))):
        own = 1.0 + rank
        expected = [own, 2 * own, 6.0, 6 + own, 6 + 2 * own, 12.0, 12 + own]
        assert values == pytest.approx(expected)


def test_names_are_registered_once() -> None:
    name = "only-in-this-test"
    try:
        assert paceline.register_strategy(name)(EveryThird) is EveryThird
        assert name in strategy_names()
        with pytest.raises(ValueError, match="already a strategy named"):
            paceline.register_strategy(name)(EveryThird)
        with pytest.raises(ValueError, match="already a strategy named 'sync'"):
            paceline.register_strategy("sync")(EveryThird)
    finally:
        _STRATEGIES.pop(name)
