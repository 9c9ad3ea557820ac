"""GPT-2 (Radford et al. 2019), in its published sizes and in a small one over characters."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.zoo.attention import FeedForward, SelfAttention

_INIT_STD = 0.02


class _Block(nn.Module):
    """Causal attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads, causal=True, dropout=dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width, approximate="tanh")
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.dropout(self.attention(self.norm_attention(tokens)))
        out: Tensor = tokens + self.dropout(self.feed_forward(self.norm_feed_forward(tokens)))
        return out


class GPT(nn.Module):
    """A decoder-only transformer whose output layer is its token embedding."""

    def __init__(
        self,
        *,
        vocabulary: int = 50257,
        context: int = 1024,
        width: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self._init_weights(depth)

    def _init_weights(self, depth: int) -> None:
        # Each of the 2 * depth branches adds its variance to the residual stream; their last
        # layers start smaller, so that the sum does not grow with depth.
        branch_std = _INIT_STD / math.sqrt(2 * depth)
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=_INIT_STD)
            elif isinstance(layer, nn.Linear):
                std = branch_std if name.endswith("project") else _INIT_STD
                nn.init.normal_(layer.weight, std=std)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (N, T, vocabulary) of the token that follows each of tokens (N, T)."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(
                f"The input has {length} tokens but the model's context is {self.context}; "
                f"build it with context={length}."
            )
        positions = torch.arange(length, device=tokens.device)
        hidden = self.dropout(self.tokens(tokens) + self.positions(positions))
        return functional.linear(self.norm(self.blocks(hidden)), self.tokens.weight)


def gpt2(*, vocabulary: int = 50257, context: int = 1024, dropout: float = 0.1) -> GPT:
    """GPT-2 with 12 layers."""
    return GPT(vocabulary=vocabulary, context=context, dropout=dropout)


def gpt2_medium(*, vocabulary: int = 50257, context: int = 1024, dropout: float = 0.1) -> GPT:
    """GPT-2 with 24 layers."""
    return GPT(
        vocabulary=vocabulary,
        context=context,
        width=1024,
        depth=24,
        num_heads=16,
        dropout=dropout,
    )


def small_gpt(
    *,
    vocabulary: int = 128,
    context: int = 64,
    width: int = 128,
    depth: int = 2,
    num_heads: int = 4,
    dropout: float = 0.0,
) -> GPT:
    """A GPT over ASCII characters that a CPU trains in seconds; without dropout by default."""
    return GPT(
        vocabulary=vocabulary,
        context=context,
        width=width,
        depth=depth,
        num_heads=num_heads,
        dropout=dropout,
    )
