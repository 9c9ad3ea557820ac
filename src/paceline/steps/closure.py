"""Optimizers that evaluate the loss themselves, as L-BFGS does, captured without values.

What such an optimizer does depends on numbers that it reads: how many points a line search tries,
whether a curvature is positive. Fakes have none. So the same optimizer first minimises a small
problem for real, ill-conditioned as a network's loss is, and the numbers that it reads there are
what it reads from fakes: both then take the same course.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from paceline.steps.recorder import Call, Recorder
from paceline.steps.tensors import tensors_in

_NUM_VALUES = 2000
_CONDITION = 1e6
_QUARTIC = 0.01
# L-BFGS remembers a hundred steps by default, and only then each step costs the same.
_MOST_STEPS = 250


def requires_closure(optimizer: Optimizer) -> bool:
    """Whether ``step()`` cannot be called without a closure."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def remade(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """A new optimizer with the same settings over other parameters.

    A copy will not do: torch copies the state and the settings, and L-BFGS keeps more.
    """
    known = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in known}
    made: Any = type(optimizer)
    result: Optimizer = made(list(parameters), **settings)
    return result


def closure_step(optimizer: Optimizer, recorder: Recorder, calls: list[Call]) -> tuple[int, ...]:
    """Record a step in the middle of training behind one evaluation that was recorded already.

    Args:
        optimizer: Over fakes that have gradients.
        recorder: Records into ``calls``.
        calls: Those of one evaluation; become those of the step, with all its evaluations.

    Returns:
        The places in ``calls`` where the evaluations begin.

    """
    evaluation, evaluations = tuple(calls), list[int]()
    solver = _Solver(optimizer)
    recorder.muted = True
    for parameter, state in solver.state_before():
        optimizer.state[parameter] = state
    loss: Tensor = optimizer.param_groups[0]["params"][0].new_empty(())
    recorder.muted = False
    recorder.answers = iter(solver.answers())
    calls.clear()

    def evaluate() -> Tensor:
        evaluations.append(len(calls))
        calls.extend(evaluation)
        return loss

    optimizer.step(evaluate)  # type: ignore[arg-type]
    if next(recorder.answers, None) is not None:
        raise ValueError("it goes another way on tensors without values")
    recorder.answers = None
    return tuple(evaluations)


class _Solver:
    """An optimizer like the given one that has solved a small problem until its steps are alike."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._real = [p for group in optimizer.param_groups for p in group["params"]]
        self._numel = -(-_NUM_VALUES // len(self._real))
        with _disable_current_modes(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            self._small = [
                nn.Parameter(torch.randn(self._numel, dtype=torch.float64)) for _ in self._real
            ]
            self._optimizer = remade(optimizer, self._small)
            self._problem = _problem(self._small)
            before = -1
            for _ in range(_MOST_STEPS):
                self._optimizer.step(self._problem)  # type: ignore[arg-type]
                now = _state_numel(self._optimizer)
                if now == before:
                    break
                before = now

    def state_before(self) -> Iterator[tuple[nn.Parameter, Any]]:
        """The optimizer's state in the sizes of the real parameters, as fakes."""
        for real, small in zip(self._real, self._small, strict=True):
            if small in self._optimizer.state:
                yield real, self._in_real_size(self._optimizer.state[small], real)

    def _in_real_size(self, value: Any, real: Tensor) -> Any:
        if isinstance(value, dict):
            return {name: self._in_real_size(each, real) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._in_real_size(each, real) for each in value)
        if not isinstance(value, Tensor):
            return value
        if value.numel() == self._numel * len(self._small):  # of all parameters, one by one
            return real.new_empty(sum(each.numel() for each in self._real))
        return torch.empty_like(real) if value.shape == (self._numel,) else real.new_empty(())

    def answers(self) -> list[Any]:
        """What the optimizer reads in one more step."""
        reads = _Reads()
        with _disable_current_modes(), reads:
            self._optimizer.step(self._problem)  # type: ignore[arg-type]
        return reads.values


def _problem(parameters: Sequence[nn.Parameter]) -> Callable[[], Tensor]:
    """A closure of a convex function whose curvatures span six orders of magnitude."""
    total = sum(p.numel() for p in parameters)
    curvatures = torch.logspace(0.0, 1.0, total, base=1 / _CONDITION, dtype=torch.float64)

    def closure() -> Tensor:
        with _disable_current_modes(), torch.enable_grad():
            values = torch.cat([p.reshape(-1) for p in parameters])
            loss = (curvatures * values**2).sum() / 2 + _QUARTIC * (values**4).sum() / 4
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            return loss.detach()

    return closure


def _state_numel(optimizer: Optimizer) -> int:
    return sum(tensor.numel() for tensor in tensors_in(list(optimizer.state.values())))


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every number that is read from a tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.values.append(result)
        return result
