"""EfficientNet-B0 (Tan and Le 2019, arXiv:1905.11946)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.zoo.layers import (
    ConvNorm,
    StochasticDepth,
    global_average,
    init_convolutional,
    silu,
)


class _Stage(NamedTuple):
    expansion: int
    kernel: int
    stride: int
    channels: int
    num_blocks: int


# table 1 of the paper
_STAGES = (
    _Stage(1, 3, 1, 16, 1),
    _Stage(6, 3, 2, 24, 2),
    _Stage(6, 5, 2, 40, 2),
    _Stage(6, 3, 2, 80, 3),
    _Stage(6, 5, 1, 112, 3),
    _Stage(6, 5, 2, 192, 4),
    _Stage(6, 3, 1, 320, 1),
)


class _SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        # 1 x 1 convolutions rather than linear layers, so that the gate keeps its image shape
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            silu(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.mul(images, self.gate(images))


class _MBConv(nn.Module):
    """An inverted residual with squeeze and excitation, dropped at random while training."""

    def __init__(self, in_channels: int, stage: _Stage, *, stride: int, drop_rate: float) -> None:
        super().__init__()
        hidden = in_channels * stage.expansion
        layers: list[nn.Module] = []
        if stage.expansion != 1:
            layers.append(ConvNorm(in_channels, hidden, 1, activation=silu))
        layers += [
            ConvNorm(hidden, hidden, stage.kernel, stride=stride, groups=hidden, activation=silu),
            # a quarter of the block's input, not of its expanded channels
            _SqueezeExcitation(hidden, in_channels // 4),
            ConvNorm(hidden, stage.channels, 1, activation=None),
        ]
        self.branch = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == stage.channels
        self.drop = StochasticDepth(drop_rate)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.branch(images)
        if self.residual:
            out = self.drop(out) + images
        return out


class EfficientNet(nn.Module):
    """MBConv blocks between a small stem and a wide 1 x 1 convolution."""

    def __init__(
        self, *, num_classes: int = 1000, dropout: float = 0.2, drop_rate: float = 0.2
    ) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [ConvNorm(3, channels, 3, stride=2, activation=silu)]
        num_blocks = sum(stage.num_blocks for stage in _STAGES)
        for stage in _STAGES:
            for position in range(stage.num_blocks):
                # the rate rises linearly with depth; the stem is not counted as a block
                rate = drop_rate * (len(layers) - 1) / num_blocks
                stride = stage.stride if position == 0 else 1
                layers.append(_MBConv(channels, stage, stride=stride, drop_rate=rate))
                channels = stage.channels
        layers.append(ConvNorm(channels, 1280, 1, activation=silu))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(global_average(self.features(images)))
        return logits


def efficientnet_b0(
    *, num_classes: int = 1000, dropout: float = 0.2, drop_rate: float = 0.2
) -> EfficientNet:
    """EfficientNet-B0; ``drop_rate`` is the stochastic depth's, at the deepest block."""
    return EfficientNet(num_classes=num_classes, dropout=dropout, drop_rate=drop_rate)
