"""DenseNet (Huang et al. 2017, arXiv:1608.06993)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.zoo.layers import global_average, init_convolutional, relu


class _DenseLayer(nn.Sequential):
    """Norm, ReLU and convolution twice: 1 x 1 to four times the growth, then 3 x 3 to it."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__(
            nn.BatchNorm2d(in_channels),
            relu(),
            nn.Conv2d(in_channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            relu(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )


class _DenseBlock(nn.Module):
    """Layers of which each reads what all the earlier ones wrote."""

    def __init__(self, in_channels: int, growth: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _DenseLayer(in_channels + index * growth, growth) for index in range(num_layers)
        )

    def forward(self, images: Tensor) -> Tensor:
        written = [images]
        for layer in self.layers:
            written.append(layer(torch.cat(written, dim=1)))
        return torch.cat(written, dim=1)


def _transition(in_channels: int, out_channels: int) -> nn.Sequential:
    """Halves the image and, usually, the channels."""
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        relu(),
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.AvgPool2d(2),
    )


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them, and one linear layer."""

    def __init__(
        self, layers_per_block: Sequence[int], *, growth: int = 32, num_classes: int = 1000
    ) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            relu(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for index, num_layers in enumerate(layers_per_block):
            if index > 0:
                layers.append(_transition(channels, channels // 2))
                channels //= 2
            layers.append(_DenseBlock(channels, growth, num_layers))
            channels += num_layers * growth
        layers += [nn.BatchNorm2d(channels), relu()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, num_classes)
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(global_average(self.features(images)))
        return logits


def densenet121(*, num_classes: int = 1000) -> DenseNet:
    """DenseNet with 121 layers and a growth of 32 channels per layer."""
    return DenseNet((6, 12, 24, 16), num_classes=num_classes)
