"""The fake world: a step's model, batch and optimizer as fake tensors.

A meta world is the same on torch's meta device, which knows shapes alone and is ten times faster.
No model runs there (its operators would not be those of a GPU), but optimizers and strategies do.

The user's own are never touched: the world holds copies whose tensors are fakes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from paceline.steps.closure import remade, requires_closure
from paceline.steps.cuda_like import cuda_like
from paceline.steps.step import AUTOCAST_DTYPES, Step
from paceline.steps.tensors import map_tensors, tensors_in
from paceline.steps.unpacked import unpacked_sequences


class FakeWorld:
    """The step's model, batch and optimizer as fakes."""

    def __init__(self, step: Step, *, device: Literal["cpu", "meta"] = "cpu") -> None:
        self._device = device
        memo: dict[int, Any] = {}
        for module in step.model.modules():
            # Parameters, buffers, and tensors that are plain attributes or in lists of them.
            for tensor in tensors_in(vars(module)):
                if id(tensor) not in memo:
                    memo[id(tensor)] = _fake(tensor, step, device)
        self.model: nn.Module = copy.deepcopy(step.model, memo)
        self.model.train()
        self.inputs = map_tensors(step.inputs, lambda tensor: _fake(tensor, step, device))
        self.targets = map_tensors(step.targets, lambda tensor: _fake(tensor, step, device))
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
        if requires_closure(step.optimizer):
            own = [p for group in step.optimizer.param_groups for p in group["params"]]
            return remade(step.optimizer, [memo[id(parameter)] for parameter in own])
        for state in step.optimizer.state.values():
            for value in tensors_in(state):
                memo[id(value)] = _fake(value, step, self._device)
        return copy.deepcopy(step.optimizer, memo)

    def standing_tensors(self) -> list[Tensor]:
        """What is in memory before the step begins."""
        batch = tensors_in((self.inputs, self.targets))
        return [*self.model.parameters(), *self.model.buffers(), *batch]


@contextmanager
def fake_world(step: Step) -> Iterator[FakeWorld]:
    """The step's model, batch and optimizer as fakes, dispatched as a CUDA build would."""
    autocast = step.precision in AUTOCAST_DTYPES
    with (
        cuda_like(autocast=autocast),
        unpacked_sequences(step.inputs),
        FakeTensorMode(allow_non_fake_inputs=True),
        _no_warnings(),
        _modules_that_stay(),
    ):
        yield FakeWorld(step)


@contextmanager
def meta_world(step: Step) -> Iterator[FakeWorld]:
    """The step's model, batch and optimizer on the meta device."""
    with _no_warnings():
        yield FakeWorld(step, device="meta")


def _fake(tensor: Tensor, step: Step, device: str) -> Tensor:
    """A fake of the same kind; images and filters in the step's memory format."""
    with torch.no_grad():
        fake: Tensor = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        )
        if step.memory_format == "channels_last" and fake.dim() == 4 and fake.is_floating_point():
            fake = torch.empty_like(fake, memory_format=torch.channels_last)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad) if tensor.is_leaf else fake


@contextmanager
def _modules_that_stay() -> Iterator[None]:
    """Let ``module.to(...)`` in a forward pass leave a module alone that is like that already.

    PyTorch swaps the parameters for the same ones, which it refuses to do with fakes in use.
    """
    convert: Callable[[nn.Module, Any, Any], Any] = nn.Module._apply

    def convert_what_changes(module: nn.Module, change: Any, recurse: bool = True) -> Any:
        with torch.no_grad():
            held = [*module.parameters(recurse), *module.buffers(recurse)]
            if all(change(each) is each for each in held):
                return module
        return convert(module, change, recurse)

    nn.Module._apply = convert_what_changes  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = convert  # type: ignore[method-assign, assignment]


@contextmanager
def _no_warnings() -> Iterator[None]:
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
