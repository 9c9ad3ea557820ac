"""A plain multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.zoo.layers import relu


class MLP(nn.Module):
    """Linear layers with ReLUs between them; whatever the input's shape, it is flattened."""

    def __init__(self, num_features: int, hidden: Sequence[int], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = num_features
        for hidden_width in hidden:
            layers += [nn.Linear(width, hidden_width), relu()]
            width = hidden_width
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (N, classes) of features (N, ...)."""
        logits: Tensor = self.layers(torch.flatten(features, 1))
        return logits


def mlp(
    *, num_features: int = 64, hidden: Sequence[int] = (256, 128), num_classes: int = 10
) -> MLP:
    """A perceptron whose defaults fit the digits."""
    return MLP(num_features, hidden, num_classes)
