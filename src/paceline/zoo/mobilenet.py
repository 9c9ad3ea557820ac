"""MobileNet v2 (Sandler et al. 2018, arXiv:1801.04381)."""

from __future__ import annotations

from torch import Tensor, nn

from paceline.zoo.layers import ConvNorm, global_average, init_convolutional

# (expansion, output channels, number of blocks, stride of the first): table 2 of the paper
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _relu6() -> nn.Module:
    return nn.ReLU6(inplace=True)


class _InvertedResidual(nn.Module):
    """1 x 1 up, depthwise 3 x 3, 1 x 1 down without activation; added to its input if it fits."""

    def __init__(self, in_channels: int, out_channels: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(ConvNorm(in_channels, hidden, 1, activation=_relu6))
        layers += [
            ConvNorm(hidden, hidden, 3, stride=stride, groups=hidden, activation=_relu6),
            ConvNorm(hidden, out_channels, 1, activation=None),
        ]
        self.branch = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.branch(images)
        return images + out if self.residual else out


class MobileNetV2(nn.Module):
    """Inverted residual blocks between a small stem and a wide 1 x 1 convolution."""

    def __init__(self, *, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [ConvNorm(3, channels, 3, stride=2, activation=_relu6)]
        for expansion, out_channels, num_blocks, first_stride in _STAGES:
            for position in range(num_blocks):
                stride = first_stride if position == 0 else 1
                layers.append(
                    _InvertedResidual(channels, out_channels, expansion=expansion, stride=stride)
                )
                channels = out_channels
        layers.append(ConvNorm(channels, 1280, 1, activation=_relu6))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(global_average(self.features(images)))
        return logits


def mobilenet_v2(*, num_classes: int = 1000, dropout: float = 0.2) -> MobileNetV2:
    """MobileNet v2 of width 1."""
    return MobileNetV2(num_classes=num_classes, dropout=dropout)
