"""Training loops that do what no tutorial does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import workloads
from jobs import DEVICE
from paceline.train import Pace

NUM_STEPS = 8
Optimizer = torch.optim.Optimizer
LossOf = Callable[[nn.Module, int], torch.Tensor]


class Sam(Optimizer):
    """Sharpness-aware minimisation in the usual shape (Foret et al. 2021): two passes a step."""

    def __init__(self, parameters: Any, base: type[Optimizer], rho: float, **settings: Any) -> None:
        super().__init__(parameters, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(0.01 * parameter.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise AssertionError("who uses SAM calls its two steps")


def backward(loss: torch.Tensor, *, retain_graph: bool = False) -> None:
    torch.autograd.backward(loss, retain_graph=retain_graph)


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Loop:
    """A way to train: the optimizers, and one step. ``loss_of`` is this worker's loss."""

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        return [sgd(model)]

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        raise NotImplementedError


class SharpnessAware(Loop):
    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        return [Sam(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9)]

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        sam = optimizers[0]
        assert isinstance(sam, Sam)
        backward(loss_of(model, step))
        sam.first_step()
        backward(loss_of(model, step))
        sam.second_step()


class GradientsByHand(Loop):
    """No backward() anywhere: autograd.grad, and gradients put where they belong."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss_of(model, step), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizers[0].step()


class Surgery(Loop):
    """PCGrad's shape: a backward pass for each loss, gradients taken away and put back as one."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        loss = loss_of(model, step)
        taken = []
        for part in (0.25 * loss, 0.75 * loss):
            optimizers[0].zero_grad()
            backward(part, retain_graph=True)
            taken.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for parameter, first, second in zip(model.parameters(), *taken, strict=True):
            parameter.grad = first + second
        optimizers[0].step()


class TwoOptimizers(Loop):
    """Weights and biases have optimizers of their own."""

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        weights = [p for p in model.parameters() if p.ndim > 1]
        biases = [p for p in model.parameters() if p.ndim == 1]
        return [torch.optim.SGD(weights, lr=0.05), torch.optim.AdamW(biases, lr=0.01)]

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(loss_of(model, step))
        for optimizer in optimizers:
            optimizer.step()


class Alternating(TwoOptimizers):
    """As a generator and its discriminator: a backward pass for each, on parts of the whole."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        for turn, optimizer in enumerate(optimizers):
            model.zero_grad()
            backward(loss_of(model, 2 * step + turn))
            optimizer.step()


class TwiceWithOneGradient(Loop):
    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        optimizers[0].zero_grad()
        backward(loss_of(model, step))
        optimizers[0].step()
        optimizers[0].step()


class NewMemory(Loop):
    """Every step gives the parameters other memory, as vector_to_parameters and clamps do."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        optimizers[0].zero_grad()
        backward(loss_of(model, step))
        optimizers[0].step()
        with torch.no_grad():
            vector_to_parameters(parameters_to_vector(model.parameters()) * 1, model.parameters())
        for parameter in model.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)


class Unfrozen(Loop):
    """The first layer is trained from the third step on."""

    def optimizers(self, model: nn.Module) -> list[Optimizer]:
        next(iter(model.parameters())).requires_grad_(False)
        return [sgd(model)]

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        if step == 3:
            model.requires_grad_(True)
        optimizers[0].zero_grad()
        backward(loss_of(model, step))
        optimizers[0].step()


class Grown(Loop):
    """A scale is added on the way, with other values on each worker, and trained from then on."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        if step == 3:
            scale = nn.Parameter(torch.ones(workloads.NUM_OUTPUTS, device=DEVICE))
            model.register_parameter("scale", scale)
            model.register_forward_hook(_scaled)
            optimizers[0].add_param_group({"params": [scale]})
        optimizers[0].zero_grad()
        backward(loss_of(model, step))
        optimizers[0].step()


def _scaled(model: nn.Module, _inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
    return outputs * model.get_parameter("scale")


class Replaced(Loop):
    """load_state_dict(assign=True) puts other parameters into the model, for another optimizer."""

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        if step == 3:
            state = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
            model.requires_grad_(True)
            optimizers[:] = [torch.optim.SGD(model.parameters(), lr=0.05)]
        optimizers[0].zero_grad()
        backward(loss_of(model, step))
        optimizers[0].step()


class OnlyAccumulated(Loop):
    """All backward passes are inside accumulate(), the last one too."""

    pace: Pace | None = None

    def step(
        self, model: nn.Module, optimizers: list[Optimizer], loss_of: LossOf, step: int
    ) -> None:
        optimizers[0].zero_grad(set_to_none=step < 3)
        if self.pace is None:
            backward(loss_of(model, step))
        else:
            with self.pace.accumulate():
                backward(loss_of(model, step))
        optimizers[0].step()


LOOPS: dict[str, Loop] = {
    "sharpness-aware": SharpnessAware(),
    "gradients by hand": GradientsByHand(),
    "surgery": Surgery(),
    "two optimizers": TwoOptimizers(),
    "alternating": Alternating(),
    "twice with one gradient": TwiceWithOneGradient(),
    "new memory": NewMemory(),
    "unfrozen": Unfrozen(),
    "grown": Grown(),
    "replaced": Replaced(),
    "only accumulated": OnlyAccumulated(),
}
COUNTS = {"twice with one gradient": 2 * NUM_STEPS}
