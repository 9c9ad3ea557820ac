"""GoogLeNet, that is Inception v1 (Szegedy et al. 2015, arXiv:1409.4842), with batch norm."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.zoo.layers import ConvNorm, global_average, init_truncated_normal, relu

_NORM_EPS = 1e-3


class _Widths(NamedTuple):
    """Channels of an inception block: of its four branches, and inside the two middle ones."""

    point: int
    reduce_first: int
    first: int
    reduce_second: int
    second: int
    pooled: int

    @property
    def total(self) -> int:
        return self.point + self.first + self.second + self.pooled


# Table 1 of the paper; the stages lie between poolings.
_STAGE3 = (_Widths(64, 96, 128, 16, 32, 32), _Widths(128, 128, 192, 32, 96, 64))
_STAGE4 = (
    _Widths(192, 96, 208, 16, 48, 64),
    _Widths(160, 112, 224, 24, 64, 64),
    _Widths(128, 128, 256, 24, 64, 64),
    _Widths(112, 144, 288, 32, 64, 64),
    _Widths(256, 160, 320, 32, 128, 128),
)
_STAGE5 = (_Widths(256, 160, 320, 32, 128, 128), _Widths(384, 192, 384, 48, 128, 128))


def _conv(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1) -> ConvNorm:
    return ConvNorm(in_channels, out_channels, kernel, stride=stride, norm_eps=_NORM_EPS)


class _Inception(nn.Module):
    """Four branches side by side, concatenated.

    The third branch has a 3 x 3 kernel where the paper has 5 x 5: the published weights and the
    usual parameter count have it so.
    """

    def __init__(self, in_channels: int, widths: _Widths) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _conv(in_channels, widths.point, 1),
                nn.Sequential(
                    _conv(in_channels, widths.reduce_first, 1),
                    _conv(widths.reduce_first, widths.first, 3),
                ),
                nn.Sequential(
                    _conv(in_channels, widths.reduce_second, 1),
                    _conv(widths.reduce_second, widths.second, 3),
                ),
                nn.Sequential(
                    nn.MaxPool2d(3, stride=1, padding=1), _conv(in_channels, widths.pooled, 1)
                ),
            ]
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


class _AuxiliaryHead(nn.Sequential):
    """A classifier on a middle layer, whose loss helps the gradient to reach the early ones."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__(
            nn.AdaptiveAvgPool2d(4),
            _conv(in_channels, 128, 1),
            nn.Flatten(),
            nn.Linear(128 * 4 * 4, 1024),
            relu(),
            nn.Dropout(0.7),
            nn.Linear(1024, num_classes),
        )


def _stage(in_channels: int, blocks: tuple[_Widths, ...]) -> nn.Sequential:
    inputs = (in_channels, *(widths.total for widths in blocks[:-1]))
    return nn.Sequential(
        *(_Inception(channels, widths) for channels, widths in zip(inputs, blocks, strict=True))
    )


class GoogLeNet(nn.Module):
    """Nine inception blocks; with ``auxiliary``, two more classifiers on the way."""

    def __init__(
        self, *, num_classes: int = 1000, auxiliary: bool = False, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 64, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            _conv(64, 64, 1),
            _conv(64, 192, 3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        )
        self.stage3 = nn.Sequential(_stage(192, _STAGE3), nn.MaxPool2d(3, stride=2, ceil_mode=True))
        # The fourth stage is cut where the auxiliary heads branch off: after 4a and after 4d.
        self.stage4a = _stage(_STAGE3[-1].total, _STAGE4[:1])
        self.stage4d = _stage(_STAGE4[0].total, _STAGE4[1:4])
        self.stage4e = nn.Sequential(
            _stage(_STAGE4[3].total, _STAGE4[4:]), nn.MaxPool2d(2, ceil_mode=True)
        )
        self.stage5 = _stage(_STAGE4[-1].total, _STAGE5)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(_STAGE5[-1].total, num_classes)
        self.auxiliary_heads = nn.ModuleList(
            _AuxiliaryHead(_STAGE4[index].total, num_classes)
            for index in ((0, 3) if auxiliary else ())
        )
        init_truncated_normal(self, std=0.01)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Logits (N, classes); in training with auxiliary heads, theirs follow the main ones."""
        middle = self.stage4a(self.stage3(self.stem(images)))
        late = self.stage4d(middle)
        features = global_average(self.stage5(self.stage4e(late)))
        logits: Tensor = self.classifier(self.dropout(features))
        if self.training and len(self.auxiliary_heads) > 0:
            return logits, self.auxiliary_heads[0](middle), self.auxiliary_heads[1](late)
        return logits


def googlenet(
    *, num_classes: int = 1000, auxiliary: bool = False, dropout: float = 0.2
) -> GoogLeNet:
    """GoogLeNet, by default without its two auxiliary classifiers."""
    return GoogLeNet(num_classes=num_classes, auxiliary=auxiliary, dropout=dropout)
