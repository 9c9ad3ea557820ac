"""ResNet (He et al. 2016, arXiv:1512.03385)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from paceline.zoo.layers import ConvNorm, global_average, init_convolutional, relu


class _Residual(nn.Module):
    """A branch of convolutions, added to its input and rectified."""

    def __init__(self, branch: nn.Module, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = ConvNorm(in_channels, out_channels, 1, stride=stride, activation=None)
        self.relu = relu()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.branch(images)
        out += self.shortcut(images)
        rectified: Tensor = self.relu(out)
        return rectified


def _basic(in_channels: int, channels: int, stride: int) -> _Residual:
    """Two 3 x 3 convolutions."""
    branch = nn.Sequential(
        ConvNorm(in_channels, channels, 3, stride=stride),
        ConvNorm(channels, channels, 3, activation=None),
    )
    return _Residual(branch, in_channels, channels, stride)


def _bottleneck(in_channels: int, channels: int, stride: int) -> _Residual:
    """1 x 1 down, 3 x 3, 1 x 1 up to four times the channels.

    The stride sits in the 3 x 3 convolution, not in the first as in the paper: the variant that
    is trained everywhere today, with the same number of parameters.
    """
    branch = nn.Sequential(
        ConvNorm(in_channels, channels, 1),
        ConvNorm(channels, channels, 3, stride=stride),
        ConvNorm(channels, 4 * channels, 1, activation=None),
    )
    return _Residual(branch, in_channels, 4 * channels, stride)


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, global average pooling and one linear layer."""

    def __init__(
        self, blocks_per_stage: Sequence[int], *, bottleneck: bool, num_classes: int = 1000
    ) -> None:
        super().__init__()
        block, expansion = (_bottleneck, 4) if bottleneck else (_basic, 1)
        self.stem = nn.Sequential(
            ConvNorm(3, 64, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)
        )
        stages: list[nn.Module] = []
        in_channels = 64
        for index, num_blocks in enumerate(blocks_per_stage):
            channels = 64 * 2**index
            blocks: list[nn.Module] = []
            for position in range(num_blocks):
                stride = 2 if index > 0 and position == 0 else 1
                blocks.append(block(in_channels, channels, stride))
                in_channels = channels * expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(in_channels, num_classes)
        init_convolutional(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(global_average(self.stages(self.stem(images))))
        return logits


def resnet18(*, num_classes: int = 1000) -> ResNet:
    """ResNet-18, of basic blocks."""
    return ResNet((2, 2, 2, 2), bottleneck=False, num_classes=num_classes)


def resnet50(*, num_classes: int = 1000) -> ResNet:
    """ResNet-50, of bottleneck blocks."""
    return ResNet((3, 4, 6, 3), bottleneck=True, num_classes=num_classes)


def resnet152(*, num_classes: int = 1000) -> ResNet:
    """ResNet-152, of bottleneck blocks."""
    return ResNet((3, 8, 36, 3), bottleneck=True, num_classes=num_classes)
