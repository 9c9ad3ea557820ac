"""A convolutional network for 8 x 8 digits, made for races on emulated clusters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.zoo.layers import ConvNorm, init_convolutional, relu


class SmallCNN(nn.Module):
    """Two convolutions with batch norm and two linear layers.

    Nearly all parameters sit in the first linear layer. That is on purpose: a step costs little
    compute but moves megabytes of gradients, so that on a slow link communication matters, as
    it does for a large network on a large cluster. No dropout: equal seeds give equal runs.
    """

    def __init__(self, *, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        hidden = 24 * width
        self.features = nn.Sequential(
            ConvNorm(1, width, 3), ConvNorm(width, 2 * width, 3), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Linear(2 * width * 4 * 4, hidden), relu(), nn.Linear(hidden, num_classes)
        )
        init_convolutional(self, linear_std=0.03)  # about 1/√inputs: these layers are narrow

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 1, 8, 8)."""
        logits: Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return logits


def small_cnn(*, num_classes: int = 10, width: int = 32) -> SmallCNN:
    """A CNN for the digits; its parameters grow with the square of ``width``."""
    return SmallCNN(num_classes=num_classes, width=width)
