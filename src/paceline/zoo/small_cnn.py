"""A convolutional network for 8 x 8 digits, made for races on emulated clusters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.zoo.layers import ConvNorm, init_convolutional


class SmallCNN(nn.Module):
    """Four convolutions with batch norm, a mean over the image, and a linear layer.

    Compute and communication are in the proportion of a large network on a large cluster: a step
    of 32 images costs a CPU core about as long as its 3 MB of gradients take at some 100 Mbit/s.
    No dropout: equal seeds give equal runs.
    """

    def __init__(self, *, num_classes: int = 10, width: int = 70) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(1, width, 3),
            ConvNorm(width, 2 * width, 3),
            nn.MaxPool2d(2),
            ConvNorm(2 * width, 4 * width, 3),
            ConvNorm(4 * width, 2 * width, 3),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(2 * width, num_classes)
        init_convolutional(self, linear_std=0.03)  # about 1/√inputs: this layer is narrow

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 1, 8, 8)."""
        logits: Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return logits


def small_cnn(*, num_classes: int = 10, width: int = 70) -> SmallCNN:
    """A CNN for the digits; its parameters grow with the square of ``width``."""
    return SmallCNN(num_classes=num_classes, width=width)
