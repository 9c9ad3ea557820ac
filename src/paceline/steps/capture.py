"""Capture: run one step on fake tensors and write down every kernel that it would start.

A fake tensor has a shape, a dtype and strides, and no memory, so a step of any size is captured on
any machine. The parameters of the user's model are never touched: the capture works on a copy of
the model whose parameters are fakes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.cluster.device import Precision
from paceline.steps.canonical import kernels_of, op_name
from paceline.steps.cuda_like import cuda_like
from paceline.steps.kernel import Kernel
from paceline.steps.step import AUTOCAST_DTYPES, Step, tensors_in

Phase = Literal["forward", "backward", "optimizer"]
_ALLOCATION_BYTES = 512  # CUDA's caching allocator rounds every tensor up to this


@dataclass(frozen=True, slots=True)
class Call:
    """One operator as the host dispatches it."""

    op: str
    phase: Phase
    kernels: tuple[Kernel, ...]
    """What it runs on the device; nothing for a view."""
    live_bytes: int
    """Memory in use while it runs, its outputs included, workspaces not."""
    num_tensors: int
    """Tensors among its arguments: what a foreach operator's dispatch depends on."""


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
    """Calls of modules in the forward pass: what Python adds on the host."""
    num_nodes: int
    """Nodes of the autograd graph."""

    def kernels(self) -> Iterator[Kernel]:
        """Every kernel in the order of the calls."""
        for call in self.calls:
            yield from call.kernels

    @property
    def tensors_peak_bytes(self) -> int:
        """The most memory that tensors hold at once; workspaces of kernels come on top."""
        return max((call.live_bytes for call in self.calls), default=0)


def capture_step(step: Step) -> Capture:
    """Capture a step; ValueError if its model cannot run on the batch or reads values."""
    autocast = AUTOCAST_DTYPES.get(step.precision)
    with fake_world(step) as world:
        calls: list[Call] = []
        recorder = Recorder(step.precision, calls)
        recorder.adopt(world.standing_tensors())
        gradients: list[GradientReady] = []
        with recorder, _counted_modules(recorder), _ready_gradients(world, gradients, calls):
            casts = torch.autocast("cpu", dtype=autocast) if autocast else nullcontext()
            with _errors_in_words(step):
                with casts:
                    loss = step.compute_loss(world.model, world.inputs, world.targets)
                num_nodes = _count_nodes(loss)
                recorder.phase = "backward"
                loss.backward()  # type: ignore[no-untyped-call]
            del loss
            recorder.phase = "optimizer"
            with _optimizer_in_words(world.optimizer):
                optimizer_bytes = _first_optimizer_step(world.optimizer, recorder)
                world.optimizer.step()
        facts = _Facts(recorder.num_modules, num_nodes, optimizer_bytes)
        return _finish(step, world, calls, gradients, facts)


@dataclass(frozen=True, slots=True)
class _Facts:
    num_modules: int
    num_nodes: int
    optimizer_bytes: int


@contextmanager
def fake_world(step: Step) -> Iterator[FakeWorld]:
    """The step's model, batch and optimizer as fakes, dispatched as a CUDA build would."""
    autocast = step.precision in AUTOCAST_DTYPES
    with cuda_like(autocast=autocast), FakeTensorMode(allow_non_fake_inputs=True), _no_warnings():
        yield FakeWorld(step)


@contextmanager
def recording(precision: Precision) -> Iterator[list[Call]]:
    """Inside, tensors are fakes and every call on them is added to the list."""
    autocast = AUTOCAST_DTYPES.get(precision)
    casts = torch.autocast("cpu", dtype=autocast) if autocast else nullcontext()
    calls: list[Call] = []
    recorder = Recorder(precision, calls)
    recorder.phase = "optimizer"  # nothing here is a model, so values may be read
    with cuda_like(autocast=autocast is not None), FakeTensorMode(), recorder, casts:
        yield calls


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
            parameters_bytes=sum(map(_rounded_bytes, standing)),
            gradients_bytes=sum(_rounded_bytes(p.grad) for p in parameters if p.grad is not None),
            optimizer_bytes=facts.optimizer_bytes,
            batch_bytes=sum(map(_rounded_bytes, tensors_in((world.inputs, world.targets)))),
        ),
        num_parameters=sum(parameter.numel() for parameter in parameters),
        num_modules=facts.num_modules,
        num_nodes=facts.num_nodes,
    )


class CallSink(Protocol):
    """What takes the calls, one after another: a list, or a journal."""

    def append(self, call: Call, /) -> None:
        """Add a call."""


class FakeWorld:
    """The step's model, batch and optimizer as fakes."""

    def __init__(self, step: Step) -> None:
        memo: dict[int, Any] = {}
        for module in step.model.modules():
            # Parameters, buffers, and tensors that are plain attributes or in lists of them.
            for tensor in tensors_in(vars(module)):
                if id(tensor) not in memo:
                    memo[id(tensor)] = _fake(tensor, step)
        self.model: nn.Module = copy.deepcopy(step.model, memo)
        self.model.train()
        self.inputs = _map_tensors(step.inputs, lambda tensor: _fake(tensor, step))
        self.targets = _map_tensors(step.targets, lambda tensor: _fake(tensor, step))
        self.optimizer = self._optimizer(step, memo)
        for group in self.optimizer.param_groups:
            # What torch.optim chooses for CUDA parameters by itself.
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def _optimizer(self, step: Step, memo: dict[int, Any]) -> Optimizer:
        if not isinstance(step.optimizer, Optimizer):
            return step.make_optimizer(self.model.parameters())
        known = {id(parameter) for parameter in step.model.parameters()}
        for group in step.optimizer.param_groups:
            if any(id(parameter) not in known for parameter in group["params"]):
                raise ValueError(
                    "The step's optimizer holds parameters that the step's model does not have."
                )
        for state in step.optimizer.state.values():
            for value in tensors_in(state):
                memo[id(value)] = _fake(value, step)
        return copy.deepcopy(step.optimizer, memo)

    def standing_tensors(self) -> list[Tensor]:
        """What is in memory before the step begins."""
        batch = tensors_in((self.inputs, self.targets))
        return [*self.model.parameters(), *self.model.buffers(), *batch]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every call, and which storages live while it runs."""

    def __init__(self, precision: str, calls: CallSink) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.calls = calls
        self.num_modules = 0
        self.live_bytes = 0
        self.muted = False
        self._precision = precision
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and self.phase == "optimizer":
            # Adam reads its step count, Adagrad too, and NAdam a product of factors below one:
            # any number between 0 and 1 leads the same way.
            if not self.muted:
                self.calls.append(Call(op_name(func), self.phase, (), self.live_bytes, 1))
            return _plausible_value(args[0])
        result = func(*args, **kwargs)
        self.adopt(tensors_in(result))
        if not self.muted and func.namespace not in ("prim", "profiler"):
            kernels = kernels_of(func, args, kwargs, result, precision=self._precision)
            num_tensors = sum(1 for _ in tensors_in(args))
            self.calls.append(
                Call(op_name(func), self.phase, kernels, self.live_bytes, num_tensors)
            )
        return result

    def adopt(self, tensors: Any) -> None:
        """Count the memory of tensors that are new, until their storage is freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                continue
            num_bytes = _round_up(storage.nbytes())
            self.live_bytes += num_bytes
            self._storages[key] = weakref.ref(storage, self._freed(key, num_bytes))

    def _freed(self, key: int, num_bytes: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.live_bytes -= num_bytes
            self._storages.pop(key, None)

        return forget


def _plausible_value(tensor: Tensor) -> float | int | bool:
    """What reading a fake gives: yes, one, or a number between 0 and 1."""
    if tensor.dtype == torch.bool:
        return True
    return 0.5 if tensor.is_floating_point() else 1


def _first_optimizer_step(optimizer: Optimizer, recorder: Recorder) -> int:
    """Let the optimizer make its state, which only its first step does; the state's bytes."""
    recorder.muted = True
    optimizer.step()
    recorder.muted = False
    state = list(tensors_in(list(optimizer.state.values())))
    recorder.adopt(state)
    return sum(map(_rounded_bytes, state))


def _fake(tensor: Tensor, step: Step) -> Tensor:
    """A fake of the same kind on the CPU; images and filters in the step's memory format."""
    with torch.no_grad():
        fake: Tensor = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
        if step.memory_format == "channels_last" and fake.dim() == 4 and fake.is_floating_point():
            fake = torch.empty_like(fake, memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad) if tensor.is_leaf else fake


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(each, change) for each in value)
    return value


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _ALLOCATION_BYTES) * _ALLOCATION_BYTES


def _rounded_bytes(tensor: Tensor) -> int:
    return _round_up(tensor.numel() * tensor.element_size())


def _count_nodes(loss: Tensor) -> int:
    seen = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
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
def _no_warnings() -> Iterator[None]:
    import logging
    import warnings

    # Fake tensors log the traceback of an operator that fails; here it becomes a sentence.
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = log.disabled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.disabled = True
        try:
            yield
        finally:
            log.disabled = was_disabled


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
        sentence = " ".join(str(problem).split())[:300]
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
            "step() needs no arguments."
        ) from problem
