"""Texts of unequal lengths, and a small network in fp64: for tests of unequal batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import paceline
from jobs import DEVICE

NUM_SAMPLES, BATCH, EPOCHS = 53, 12, 2
LENGTHS = [1 + (7 * index) % 5 for index in range(NUM_SAMPLES)]


class Texts(Dataset[Any]):
    """Sequences of unequal lengths, and a target for each token; a sample tells its index."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randn(LENGTHS[index], 4, generator=generator, dtype=torch.float64)
        return tokens + 0.1 * index, tokens.sum(-1, keepdim=True).sin(), index


def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    inputs, targets, indices = zip(*samples, strict=True)
    return torch.cat(inputs), torch.cat(targets), list(indices)


def build(kind: str = "plain") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    norm: list[nn.Module] = [] if kind == "plain" else [nn.BatchNorm1d(5)]
    model = nn.Sequential(nn.Linear(4, 5), *norm, nn.Tanh(), nn.Linear(5, 1)).double().to(DEVICE)
    if kind == "synchronised":
        paceline.SyncBatchNorm.convert(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, batch: Any, unit: str) -> torch.Tensor:
    """The mean over tokens, or over samples of their tokens' means."""
    inputs, targets, indices = batch
    errors: torch.Tensor = (model(inputs.to(DEVICE)) - targets.to(DEVICE)).square().mean(-1)
    if unit == "tokens":
        return errors.mean()
    parts = torch.split(errors, [LENGTHS[index] for index in indices])
    return torch.stack([part.mean() for part in parts]).mean()


def flat(model: nn.Module) -> torch.Tensor:
    tensors = [t.detach().flatten().double().cpu() for t in model.state_dict().values()]
    return torch.cat(tensors)


def whole_batches(loading: dict[str, Any], unit: str) -> list[list[int]]:
    """The global batches of all epochs, as torch's own tools make them."""
    found = []
    for epoch in range(EPOCHS):
        order = list(range(NUM_SAMPLES))
        if loading.get("shuffle"):
            order = torch.randperm(
                NUM_SAMPLES, generator=torch.Generator().manual_seed(3 + epoch)
            ).tolist()
        batch: list[int] = []
        for index in order:
            tokens = sum(LENGTHS[i] for i in [*batch, index])
            if tokens > 40 if unit == "tokens" else len(batch) == BATCH:
                found.append(batch)
                batch = []
            batch = [*batch, index]
        if not loading.get("drop_last"):
            found.append(batch)
    return found


def whole_batches_of(size: int) -> list[list[int]]:
    own = [list(range(i, min(i + size, NUM_SAMPLES))) for i in range(0, NUM_SAMPLES, size)]
    return own * EPOCHS


@torch.no_grad()
def average(models: Sequence[nn.Module], weights: Sequence[int]) -> None:
    for tensors in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(w * t for w, t in zip(weights, tensors, strict=True)) / sum(weights)
        for tensor in tensors:
            tensor.copy_(mean)
