"""VGG (Simonyan and Zisserman 2015, arXiv:1409.1556)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.zoo.layers import init_convolutional, relu

# (number of convolutions, channels) of each stage; a stage ends by halving the image
_VGG16_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


class VGG(nn.Module):
    """Stacks of 3 x 3 convolutions with max pooling between them, then three linear layers."""

    def __init__(
        self,
        stages: Sequence[tuple[int, int]],
        *,
        num_classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        in_channels = 3
        for num_convolutions, channels in stages:
            for _ in range(num_convolutions):
                layers += [nn.Conv2d(in_channels, channels, 3, padding=1), relu()]
                in_channels = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(in_channels * 7 * 7, 4096),
            relu(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            relu(),
            nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(torch.flatten(self.pool(self.features(images)), 1))
        return logits


def vgg16(*, num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """VGG with 13 convolutions and 3 linear layers, without batch norm."""
    return VGG(_VGG16_STAGES, num_classes=num_classes, dropout=dropout)
