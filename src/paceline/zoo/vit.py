"""The vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paceline.zoo.attention import FeedForward, SelfAttention
from paceline.zoo.layers import init_truncated_normal, truncated_normal_

_NORM_EPS = 1e-6


class _Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width, eps=_NORM_EPS)
        self.attention = SelfAttention(width, num_heads, dropout=dropout)
        self.norm_feed_forward = nn.LayerNorm(width, eps=_NORM_EPS)
        self.feed_forward = FeedForward(width, 4 * width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.dropout(self.attention(self.norm_attention(tokens)))
        out: Tensor = tokens + self.dropout(self.feed_forward(self.norm_feed_forward(tokens)))
        return out


class VisionTransformer(nn.Module):
    """An image as a sentence of patches, with a class token in front that is read at the end."""

    def __init__(
        self,
        *,
        image_size: int = 224,
        patch_size: int = 16,
        width: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        num_classes: int = 1000,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size != 0:
            raise ValueError(
                f"The image size {image_size} is not a multiple of the patch size {patch_size}; "
                "change one of them."
            )
        num_patches = (image_size // patch_size) ** 2
        self.image_size = image_size
        self.patches = nn.Conv2d(3, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, num_patches + 1, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=_NORM_EPS)
        self.classifier = nn.Linear(width, num_classes)
        init_truncated_normal(self)
        truncated_normal_(self.positions, std=0.02)
        # the patch layer is a linear one over 3 * patch_size² inputs: LeCun's scale keeps their
        # variance
        truncated_normal_(self.patches.weight, std=1.0 / (math.sqrt(3) * patch_size))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, 3, image_size, image_size)."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"This vision transformer reads images of {self.image_size} x {self.image_size}; "
                f"build it with image_size={images.shape[-1]} for such images."
            )
        patches = self.patches(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(images.shape[0], -1, -1)
        tokens = self.dropout(torch.cat([class_token, patches], dim=1) + self.positions)
        logits: Tensor = self.classifier(self.norm(self.blocks(tokens))[:, 0])
        return logits


def vit_b16(
    *, image_size: int = 224, num_classes: int = 1000, dropout: float = 0.0
) -> VisionTransformer:
    """ViT-B/16: the base size, with patches of 16 x 16."""
    return VisionTransformer(image_size=image_size, num_classes=num_classes, dropout=dropout)
