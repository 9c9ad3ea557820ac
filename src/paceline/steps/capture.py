"""Capture: runs one step on fake tensors and records every kernel that it would start.

A fake tensor has a shape, a dtype and strides, and no memory, so a step of any size is captured on
any machine. The parameters of the user's model are never touched: the capture works on a copy of
the model whose parameters are fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from paceline.steps.canonical import op_name
from paceline.steps.closure import closure_step, requires_closure
from paceline.steps.fake_world import FakeWorld, fake_world
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import Call, Flow, Recorder, rounded_bytes
from paceline.steps.step import AUTOCAST_DTYPES, Step
from paceline.steps.tensors import tensors_in


@dataclass(frozen=True, slots=True)
class GradientReady:
    """The moment when a parameter's gradient is complete."""

    parameter: str
    num_bytes: int
    after_call: int
    """Number of calls dispatched before this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """What lives in memory through the step, in bytes."""

    parameters_bytes: int
    """Parameters and buffers."""
    gradients_bytes: int
    optimizer_bytes: int
    batch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One whole iteration: forward pass, loss, backward pass, optimizer."""

    name: str
    batch: int
    precision: str
    calls: tuple[Call, ...]
    gradients: tuple[GradientReady, ...]
    """In the order in which they become ready."""
    memory: StepMemory
    num_parameters: int
    num_modules: int
    """Calls of modules in forward passes: what Python adds on the host."""
    num_autograd_functions: int
    """Functions of the autograd graphs, each called once in a backward pass."""
    evaluations: tuple[int, ...] = ()
    """Of an optimizer that evaluates the loss itself, as L-BFGS does: the places in ``calls`` where
    a forward and a backward pass begin. The gradients are those of the first."""
    assumptions: tuple[str, ...] = ()
    """What was assumed of values that fake tensors do not have, each in a sentence."""

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel in the order of the calls."""
        for call in self.calls:
            yield from call.kernels

    @property
    def tensors_peak_bytes(self) -> int:
        """The most memory that tensors hold at once; workspaces of kernels come on top."""
        return max((call.live_bytes for call in self.calls), default=0)


def capture_step(step: Step) -> Capture:
    """Run a step on fake tensors and record every kernel that it would start.

    Args:
        step: What is trained. It is not changed.

    Raises:
        ValueError: The model cannot run on the batch, or reads values, which fakes do not have.
    """
    return _capture(step, None)


def capture_with_flow(step: Step) -> tuple[Capture, tuple[Flow, ...]]:
    """Capture a step, and say of every call what it reads and writes.

    Args:
        step: What is trained. It is not changed.
    """
    flows: list[Flow] = []
    return _capture(step, flows), tuple(flows)


def _capture(step: Step, flows: list[Flow] | None) -> Capture:
    autocast = AUTOCAST_DTYPES.get(step.precision)
    with fake_world(step) as world:
        calls: list[Call] = []
        recorder = Recorder(step.precision, calls, flows=flows)
        recorder.adopt(world.standing_tensors())
        gradients: list[GradientReady] = []
        watched = _ready_gradients(world, gradients, calls)
        told = nullcontext() if flows is None else _known_model(recorder, world.model)
        with recorder, _counted_modules(recorder), told, watched:
            casts = torch.autocast("cpu", dtype=autocast) if autocast else nullcontext()
            with _errors_in_words(step):
                with casts:
                    loss = step.compute_loss(world.model, world.inputs, world.targets)
                num_autograd_functions = _count_autograd_functions(loss)
                recorder.phase = "backward"
                loss.backward()  # type: ignore[no-untyped-call]
            del loss
            recorder.phase, recorder.in_model = "optimizer", False
            evaluations: tuple[int, ...] = ()
            with _optimizer_in_words(world.optimizer):
                if requires_closure(world.optimizer):
                    evaluations = closure_step(world.optimizer, recorder, calls)
                    optimizer_bytes = _state_bytes(world.optimizer)
                else:
                    optimizer_bytes = _first_optimizer_step(world.optimizer, recorder)
                    world.optimizer.step()
        facts = _Facts(
            recorder.num_modules,
            num_autograd_functions,
            optimizer_bytes,
            evaluations,
            tuple(sorted(recorder.assumptions)),
        )
        return _finish(step, world, calls, gradients, facts)


@dataclass(frozen=True, slots=True)
class _Facts:
    num_modules: int
    num_autograd_functions: int
    optimizer_bytes: int
    evaluations: tuple[int, ...]
    assumptions: tuple[str, ...]


def _finish(
    step: Step,
    world: FakeWorld,
    calls: Sequence[Call],
    gradients: Sequence[GradientReady],
    facts: _Facts,
) -> Capture:
    # The optimizer's state came to life late in this capture; in every later step it is there
    # from the start.
    with_state = tuple(
        Call(c.op, c.phase, c.kernels, c.live_bytes + facts.optimizer_bytes, c.num_tensors)
        if c.phase != "optimizer"
        else c
        for c in calls
    )
    parameters = list(world.model.parameters())
    standing = [*parameters, *world.model.buffers()]
    return Capture(
        name=step.title,
        batch=step.batch,
        precision=step.precision,
        calls=with_state,
        gradients=tuple(gradients),
        memory=StepMemory(
            parameters_bytes=sum(map(rounded_bytes, standing)),
            gradients_bytes=sum(rounded_bytes(p.grad) for p in parameters if p.grad is not None),
            optimizer_bytes=facts.optimizer_bytes,
            batch_bytes=sum(map(rounded_bytes, tensors_in((world.inputs, world.targets)))),
        ),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_modules=facts.num_modules * max(1, len(facts.evaluations)),
        num_autograd_functions=facts.num_autograd_functions * max(1, len(facts.evaluations)),
        evaluations=facts.evaluations,
        assumptions=facts.assumptions,
    )


def _first_optimizer_step(optimizer: Optimizer, recorder: Recorder) -> int:
    """Let the optimizer make its state, which only its first step does; the state's bytes."""
    recorder.muted = True
    optimizer.step()
    recorder.muted = False
    recorder.adopt(tensors_in(list(optimizer.state.values())))
    return _state_bytes(optimizer)


def _state_bytes(optimizer: Optimizer) -> int:
    return sum(map(rounded_bytes, tensors_in(list(optimizer.state.values()))))


def _count_autograd_functions(loss: Tensor) -> int:
    seen = set()
    waiting = [loss.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is not None and function not in seen:
            seen.add(function)
            waiting += [parent for parent, _ in function.next_functions]
    return len(seen)


@contextmanager
def _counted_modules(recorder: Recorder) -> Iterator[None]:
    def count(*_: Any) -> None:
        recorder.num_modules += 1

    handle = register_module_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _known_model(recorder: Recorder, model: nn.Module) -> Iterator[None]:
    """Say which calls are the model's: up to its output, and from its output's gradient on."""

    def enter(*_: Any) -> None:
        recorder.in_model = True

    def leave(_module: Any, _inputs: Any, output: Any) -> None:
        recorder.in_model = False
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(enter)  # type: ignore[no-untyped-call]

    handle = model.register_forward_hook(leave)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _ready_gradients(
    world: FakeWorld, gradients: list[GradientReady], calls: Sequence[Call]
) -> Iterator[None]:
    def watch(name: str) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            num_bytes = parameter.numel() * parameter.element_size()
            gradients.append(GradientReady(name, num_bytes, len(calls)))

        return ready

    handles = [
        parameter.register_post_accumulate_grad_hook(watch(name))  # type: ignore[no-untyped-call]
        for name, parameter in world.model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _errors_in_words(step: Step) -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as problem:
        raise ValueError(
            f"{step.title} reads the value of a tensor ({op_name(problem.func)}) to decide what "
            "to do next, so its step cannot be captured without data; replace .item(), nonzero "
            "or a comparison in its forward pass by tensor operations."
        ) from problem
    except ValueError:
        raise
    except Exception as problem:
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors_in(step.inputs))
        sentence = " ".join(str(problem).split())[:300].rstrip(".")
        raise ValueError(
            f"{step.title} fails on an input of shape {shapes}: {sentence}; "
            "check the input's shape and the loss."
        ) from problem


@contextmanager
def _optimizer_in_words(optimizer: Optimizer) -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        sentence = " ".join(str(problem).split())[:300]
        raise ValueError(
            f"{type(optimizer).__name__} cannot be captured: {sentence}; take an optimizer whose "
            "step() needs no arguments but a closure."
        ) from problem
