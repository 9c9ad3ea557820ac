"""AlexNet in its one-tower form (Krizhevsky 2014, arXiv:1404.5997)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.zoo.layers import init_convolutional, relu


class AlexNet(nn.Module):
    """Five convolutions and three large linear layers, which hold 96 % of the parameters."""

    def __init__(self, *, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            relu(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            relu(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            relu(),
            nn.Conv2d(384, 256, 3, padding=1),
            relu(),
            nn.Conv2d(256, 256, 3, padding=1),
            relu(),
            nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            relu(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            relu(),
            nn.Linear(4096, num_classes),
        )
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(torch.flatten(self.pool(self.features(images)), 1))
        return logits


def alexnet(*, num_classes: int = 1000, dropout: float = 0.5) -> AlexNet:
    """AlexNet for 224 x 224 images."""
    return AlexNet(num_classes=num_classes, dropout=dropout)
