"""BERT (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.zoo.attention import FeedForward, SelfAttention

_NORM_EPS = 1e-12
_INIT_STD = 0.02


class _Block(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads, dropout=dropout)
        self.norm_attention = nn.LayerNorm(width, eps=_NORM_EPS)
        self.feed_forward = FeedForward(width, 4 * width)
        self.norm_feed_forward = nn.LayerNorm(width, eps=_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm_attention(tokens + self.dropout(self.attention(tokens)))
        out: Tensor = self.norm_feed_forward(tokens + self.dropout(self.feed_forward(tokens)))
        return out


class BertEncoder(nn.Module):
    """Embeddings of tokens, positions and segments, then the blocks."""

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        width: int,
        depth: int,
        num_heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=_NORM_EPS)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, num_heads, dropout) for _ in range(depth)))

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Hidden states (N, T, width) of tokens (N, T)."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(
                f"The input has {length} tokens but the model's context is {self.context}; "
                f"build it with context={length}."
            )
        if segments is None:
            segments = torch.zeros_like(tokens)
        positions = torch.arange(length, device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(positions) + self.segments(segments)
        hidden: Tensor = self.blocks(self.dropout(self.norm(embedded)))
        return hidden


class Bert(nn.Module):
    """The encoder with a pooler over the first token: what a classifier is fine-tuned from."""

    def __init__(self, encoder: BertEncoder) -> None:
        super().__init__()
        width = encoder.tokens.embedding_dim
        self.encoder = encoder
        self.pooler = nn.Linear(width, width)
        _init_weights(self)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states (N, T, width) and the pooled first one (N, width)."""
        hidden: Tensor = self.encoder(tokens, segments)
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))


class BertMaskedLM(nn.Module):
    """The encoder with the head that guesses masked tokens; its decoder is the embedding.

    It has no pooler: nothing would train it, and a parameter without gradient only disturbs.
    """

    def __init__(self, encoder: BertEncoder) -> None:
        super().__init__()
        vocabulary, width = encoder.tokens.weight.shape
        self.encoder = encoder
        self.transform = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=_NORM_EPS)
        )
        self.decoder_bias = nn.Parameter(torch.zeros(vocabulary))
        _init_weights(self)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits (N, T, vocabulary) of the token at each place of tokens (N, T)."""
        hidden = self.transform(self.encoder(tokens, segments))
        return functional.linear(hidden, self.encoder.tokens.weight, self.decoder_bias)


def _init_weights(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.Embedding | nn.Linear):
            nn.init.normal_(layer.weight, std=_INIT_STD)
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)


def bert_base(
    *,
    vocabulary: int = 30522,
    context: int = 512,
    dropout: float = 0.1,
    masked_lm: bool = False,
) -> Bert | BertMaskedLM:
    """BERT-base: the encoder with its pooler, or with ``masked_lm`` the model to pre-train."""
    encoder = BertEncoder(
        vocabulary=vocabulary,
        context=context,
        width=768,
        depth=12,
        num_heads=12,
        dropout=dropout,
    )
    return BertMaskedLM(encoder) if masked_lm else Bert(encoder)
