"""Small networks, optimizers and batches for tests: the same numbers in every process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from jobs import DEVICE

NUM_FEATURES = 7
NUM_OUTPUTS = 3


class Tied(nn.Module):
    """Two layers that are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(NUM_FEATURES, 5)
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.out = nn.Linear(5, NUM_OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(torch.tanh(self.into(inputs))))
        outputs: torch.Tensor = self.out(torch.tanh(self.second(hidden)))
        return outputs


class Single(nn.Module):
    """A model of one parameter with one value."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, :NUM_OUTPUTS] * self.scale


class Drift(nn.Module):
    """Values that move by ``slope`` at each step of SGD with a learning rate of one."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(size))

    def forward(self, slope: float | torch.Tensor) -> torch.Tensor:
        return -(self.values * slope).sum()


def build_drift(size: int = 1) -> tuple[Drift, Optimizer]:
    model = Drift(size).to(DEVICE)
    return model, SGD(model.parameters(), lr=1.0)


def plain_model() -> nn.Module:
    # Smooth and with odd sizes: a ReLU's edge would turn rounding into real differences.
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.Tanh(), nn.Linear(5, NUM_OUTPUTS))


def frozen_model() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(NUM_FEATURES, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, NUM_OUTPUTS)
    )
    for parameter in [*model[2].parameters(), model[4].bias]:
        parameter.requires_grad_(False)
    return model


def normed_model() -> nn.Module:
    # No bias before the norm: its gradient is zero, and AdamW would train it on rounding errors.
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, 5, bias=False),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Linear(5, NUM_OUTPUTS),
    )


def wide_model() -> nn.Module:
    # Over a mebibyte of gradients before the last layer's: three buckets.
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, 520),
        nn.Tanh(),
        nn.Linear(520, 530),
        nn.Tanh(),
        nn.Linear(530, NUM_OUTPUTS),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain_model,
    "frozen": frozen_model,
    "groups": plain_model,
    "shared": Tied,
    "single": Single,
    "normed": normed_model,
    "wide": wide_model,
}


def build_model(kind: str, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind]().to(DEVICE)


def build_optimizer(kind: str, model: nn.Module, *, has_groups: bool = False) -> Optimizer:
    """``momentum`` or ``adamw``; with groups, weights and biases are trained differently."""
    parameters = list(model.parameters())
    groups: list[dict[str, object]] = [{"params": parameters}]
    if has_groups:
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "lr": 0.02, "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim <= 1], "lr": 0.005, "weight_decay": 0.0},
        ]
    if kind == "momentum":
        return SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)
    return AdamW(groups, lr=0.01, weight_decay=0.05)


def build(model_kind: str, optimizer_kind: str, *, seed: int = 0) -> tuple[nn.Module, Optimizer]:
    model = build_model(model_kind, seed=seed)
    return model, build_optimizer(optimizer_kind, model, has_groups=model_kind == "groups")


def make_batch(step: int, rank: int, *, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of one worker at one step; workers see different distributions."""
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    inputs = torch.randn(size, NUM_FEATURES, generator=generator) + 0.3 * rank
    targets = torch.randn(size, NUM_OUTPUTS, generator=generator) - 0.2 * rank
    return inputs.to(DEVICE), targets.to(DEVICE)


def batch_loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    inputs, targets = make_batch(step, rank)
    return nn.functional.mse_loss(model(inputs), targets)


def flat_state(model: nn.Module) -> torch.Tensor:
    """All parameters and floating-point buffers as one tensor on the CPU, for comparisons."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return torch.cat([t.detach().double().flatten().cpu() for t in tensors])
