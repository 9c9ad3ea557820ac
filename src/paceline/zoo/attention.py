"""The two halves of a transformer block: self-attention and the feed-forward layer."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762).

    Queries, keys and values come out of one linear layer: one large kernel instead of three.
    """

    def __init__(
        self, width: int, num_heads: int, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % num_heads != 0:
            raise ValueError(
                f"The width {width} is not a multiple of the number of heads {num_heads}; "
                "change one of them."
            )
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mix tokens (N, T, width) with each other."""
        batch, length, width = tokens.shape
        heads = self.qkv(tokens).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, applied to each token."""

    def __init__(
        self, width: int, hidden: int, *, approximate: Literal["none", "tanh"] = "none"
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.gelu = nn.GELU(approximate=approximate)
        self.project = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token of (N, T, width) by itself."""
        out: Tensor = self.project(self.gelu(self.expand(tokens)))
        return out
