"""Layers that several convolutional families share, and their initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def relu() -> nn.Module:
    """A ReLU that overwrites its input: the input is never needed again, so memory is saved."""
    return nn.ReLU(inplace=True)


def silu() -> nn.Module:
    """A SiLU that overwrites its input."""
    return nn.SiLU(inplace=True)


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch norm, and an optional activation.

    The padding keeps the size of the image at stride 1. The convolution has no bias because the
    norm that follows would subtract it again.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[[], nn.Module] | None = relu,
        norm_eps: float = 1e-5,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(
                in_channels,
                out_channels,
                kernel,
                stride=stride,
                padding=kernel // 2,
                groups=groups,
                bias=False,
            ),
            nn.BatchNorm2d(out_channels, eps=norm_eps),
        ]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)


class StochasticDepth(nn.Module):
    """Drops a residual branch for whole examples while training (Huang et al. 2016).

    What is kept is scaled by 1 / (1 - rate), so that its expectation stays the same.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """The branch, zero for the dropped examples."""
        if not self.training or self.rate == 0.0:
            return branch
        keep = 1.0 - self.rate
        per_example = (branch.shape[0],) + (1,) * (branch.dim() - 1)
        mask = branch.new_empty(per_example).bernoulli_(keep).div_(keep)
        return branch * mask


def global_average(images: Tensor) -> Tensor:
    """The mean over height and width: (N, C, H, W) to (N, C)."""
    return torch.flatten(nn.functional.adaptive_avg_pool2d(images, 1), 1)


def init_convolutional(model: nn.Module, *, linear_std: float = 0.01) -> None:
    """Kaiming's initialisation for convolutions, and small normal weights for linear layers."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=linear_std)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def truncated_normal_(tensor: Tensor, *, std: float) -> None:
    """Fill a tensor from a normal distribution cut off at two standard deviations.

    By inverting the distribution function. ``nn.init.trunc_normal_`` draws again until all
    values fit, which asks the tensor for its values, and a fake tensor has none.
    """
    cut = math.erf(math.sqrt(2.0))  # the probability within two standard deviations
    with torch.no_grad():
        tensor.uniform_(-cut, cut).erfinv_().mul_(math.sqrt(2.0) * std)


def init_truncated_normal(model: nn.Module, *, std: float = 0.02) -> None:
    """Truncated normal weights and zero biases, as the vision transformers and ConvNeXt use."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            truncated_normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
