"""ConvNeXt (Liu et al. 2022, arXiv:2201.03545)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.zoo.layers import StochasticDepth, global_average, init_truncated_normal

_NORM_EPS = 1e-6


class _ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of each pixel of (N, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_NORM_EPS)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the base class names it so)
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Block(nn.Module):
    """Depthwise 7 x 7, then a two-layer perceptron on each pixel, scaled and added."""

    def __init__(self, channels: int, *, drop_rate: float, scale: float = 1e-6) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.pointwise = nn.Sequential(
            nn.LayerNorm(channels, eps=_NORM_EPS),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels, 1, 1), scale))
        self.drop = StochasticDepth(drop_rate)

    def forward(self, images: Tensor) -> Tensor:
        # linear layers want the channels last
        pixels = self.depthwise(images).permute(0, 2, 3, 1)
        branch = self.pointwise(pixels).permute(0, 3, 1, 2)
        out: Tensor = images + self.drop(self.scale * branch)
        return out


class ConvNeXt(nn.Module):
    """A patch stem and four stages of blocks, with a norm and a stride-2 convolution between."""

    def __init__(
        self,
        blocks_per_stage: Sequence[int],
        channels_per_stage: Sequence[int],
        *,
        num_classes: int = 1000,
        drop_rate: float = 0.1,
    ) -> None:
        super().__init__()
        last_block = sum(blocks_per_stage) - 1
        block_index = 0
        channels = channels_per_stage[0]
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 4, stride=4), _ChannelNorm(channels)]
        for num_blocks, out_channels in zip(blocks_per_stage, channels_per_stage, strict=True):
            if out_channels != channels:
                layers += [_ChannelNorm(channels), nn.Conv2d(channels, out_channels, 2, stride=2)]
                channels = out_channels
            for _ in range(num_blocks):
                layers.append(_Block(channels, drop_rate=drop_rate * block_index / last_block))
                block_index += 1
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels, eps=_NORM_EPS)
        self.classifier = nn.Linear(channels, num_classes)
        init_truncated_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(self.norm(global_average(self.features(images))))
        return logits


def convnext_t(*, num_classes: int = 1000, drop_rate: float = 0.1) -> ConvNeXt:
    """ConvNeXt-T; ``drop_rate`` is the stochastic depth's, at the deepest block."""
    return ConvNeXt((3, 3, 9, 3), (96, 192, 384, 768), num_classes=num_classes, drop_rate=drop_rate)
