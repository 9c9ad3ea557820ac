"""Networks that nothing was chosen by: first predicted when the kernel model was complete.

Of the same kinds as those in `user_networks.py`, which some choices were made by. They are held
against predictions by `benchmarks/outside_zoo.py --networks fresh`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, click_loss, pixel_loss, random_words


class Separator(nn.Module):
    """Voices from a mixture by dilated depthwise convolutions, as in Conv-TasNet."""

    def __init__(
        self, width: int = 256, inner: int = 512, blocks: int = 8, repeats: int = 2
    ) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, width, 16, stride=8, bias=False)
        self.start = nn.Sequential(nn.GroupNorm(1, width), nn.Conv1d(width, 128, 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(128, inner, 1),
                nn.PReLU(),
                nn.GroupNorm(1, inner),
                nn.Conv1d(inner, inner, 3, padding=2**level, dilation=2**level, groups=inner),
                nn.PReLU(),
                nn.GroupNorm(1, inner),
                nn.Conv1d(inner, 128, 1),
            )
            for _ in range(repeats)
            for level in range(blocks)
        )
        self.mask = nn.Conv1d(128, 2 * width, 1)
        self.decode = nn.ConvTranspose1d(width, 1, 16, stride=8, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        frames = self.encode(sound)
        state = self.start(frames)
        for block in self.blocks:
            state = state + block(state)
        batch, width, length = frames.shape
        masks = torch.sigmoid(self.mask(state)).view(batch, 2, width, length)
        voices = (masks * frames.unsqueeze(1)).flatten(0, 1)
        made: Tensor = self.decode(voices).view(batch, 2, -1)
        return made


class Vocoder(nn.Module):
    """Sound from a spectrogram: transposed and dilated convolutions, as in HiFi-GAN."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.start = nn.Conv1d(80, width, 7, padding=3)
        self.grow, self.mix = nn.ModuleList(), nn.ModuleList()
        for factor, side in ((8, 16), (8, 16), (2, 4), (2, 4)):
            padding = (side - factor) // 2
            grow = nn.ConvTranspose1d(width, width // 2, side, stride=factor, padding=padding)
            self.grow.append(grow)
            width //= 2
            self.mix.append(
                nn.ModuleList(
                    nn.Conv1d(width, width, wide, padding=rate * (wide // 2), dilation=rate)
                    for wide in (3, 7)
                    for rate in (1, 3, 5)
                )
            )
        self.head = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, spectrogram: Tensor) -> Tensor:
        signal = self.start(spectrogram)
        for grow, mix in zip(self.grow, self.mix, strict=True):
            signal = grow(functional.leaky_relu(signal, 0.1))
            for convolution in mix:  # type: ignore[attr-defined]
                signal = signal + convolution(functional.leaky_relu(signal, 0.1))
        return torch.tanh(self.head(functional.leaky_relu(signal)))


class HeartNet(nn.Module):
    """A residual network over twelve signals, as for electrocardiograms."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv1d(12, width, 15, stride=2, padding=7, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(3, 2, padding=1),
        )
        self.blocks, self.shorts = nn.ModuleList(), nn.ModuleList()
        sizes = (width, width, width * 2, width * 2, width * 4, width * 4)
        for before, after in pairwise((width, *sizes)):
            stride = 1 if before == after else 2
            self.blocks.append(
                nn.Sequential(
                    nn.Conv1d(before, after, 7, stride=stride, padding=3, bias=False),
                    nn.BatchNorm1d(after),
                    nn.ReLU(inplace=True),
                    nn.Conv1d(after, after, 7, padding=3, bias=False),
                    nn.BatchNorm1d(after),
                )
            )
            self.shorts.append(nn.Conv1d(before, after, 1, stride=stride, bias=False))
        self.head = nn.Linear(sizes[-1], 27)

    def forward(self, signals: Tensor) -> Tensor:
        state = self.start(signals)
        for block, short in zip(self.blocks, self.shorts, strict=True):
            state = functional.relu(block(state) + short(state))
        decided: Tensor = self.head(state.mean(2))
        return decided


class Painter(nn.Module):
    """One image from another: strided convolutions down, transposed ones up, as in pix2pix."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 64, 128, 256, 512, 512, 512)
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 4, stride=2, padding=1) for before, after in pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.InstanceNorm2d(size) for size in sizes[1:])
        back = list(reversed(sizes[1:]))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(before * (1 if level == 0 else 2), after, 4, stride=2, padding=1)
            for level, (before, after) in enumerate(pairwise(back))
        )
        self.up_norms = nn.ModuleList(nn.BatchNorm2d(size) for size in back[1:])
        self.head = nn.ConvTranspose2d(2 * sizes[1], 3, 4, stride=2, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        kept = []
        for convolution, norm in zip(self.down, self.norms, strict=True):
            image = functional.leaky_relu(norm(convolution(image)), 0.2)
            kept.append(image)
        image = kept.pop()
        for grow, norm in zip(self.up, self.up_norms, strict=True):
            image = torch.cat([functional.relu(norm(grow(image))), kept.pop()], 1)
        return torch.tanh(self.head(image))


class ImageCoder(nn.Module):
    """An image coder with group norm and nearest upsampling, as latent diffusion's."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        sizes = (width, width * 2, width * 4)
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(_GroupBlock(a, b) for a, b in pairwise((width, *sizes)))
        self.shrink = nn.ModuleList(nn.Conv2d(s, s, 3, stride=2, padding=1) for s in sizes)
        self.code = nn.Conv2d(sizes[-1], 8, 1)
        self.open = nn.Conv2d(8, sizes[-1], 1)
        back = tuple(reversed(sizes))
        self.up = nn.ModuleList(_GroupBlock(a, b) for a, b in pairwise((back[0], *back)))
        self.grow = nn.ModuleList(nn.Conv2d(size, size, 3, padding=1) for size in back)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        state = self.start(image)
        for block, shrink in zip(self.down, self.shrink, strict=True):
            state = shrink(block(state))
        state = self.open(self.code(state))
        for block, grow in zip(self.up, self.grow, strict=True):
            state = grow(functional.interpolate(block(state), scale_factor=2.0, mode="nearest"))
        made: Tensor = self.head(functional.silu(state))
        return made


class _GroupBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(32, before),
            nn.SiLU(),
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(32, after),
            nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1),
        )
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, image: Tensor) -> Tensor:
        made: Tensor = self.short(image) + self.body(image)
        return made


class Towers(nn.Module):
    """Users and items by large tables with dense gradients, compared within the batch."""

    def __init__(self, rows: int = 500_000, width: int = 128, fields: int = 4) -> None:
        super().__init__()
        self.users = nn.Embedding(rows, width)
        self.items = nn.Embedding(rows, width)
        self.user = nn.Sequential(
            nn.Linear(fields * width, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, width)
        )
        self.item = nn.Sequential(
            nn.Linear(fields * width, 512), nn.ReLU(), nn.LayerNorm(512), nn.Linear(512, width)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        left = self.user(self.users(users).flatten(1))
        right = self.item(self.items(items).flatten(1))
        likely: Tensor = (left * right).sum(1, keepdim=True)
        return likely


class GraphAttention(nn.Module):
    """Edges weighted by a softmax over the neighbours of each node."""

    def __init__(self, width: int = 192, layers: int = 3) -> None:
        super().__init__()
        self.start = nn.Linear(64, width)
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        state = functional.elu(self.start(nodes))
        source, target = edges[0], edges[1]
        for value, score in zip(self.values, self.scores, strict=True):
            made = value(state)
            pairs = torch.cat([made[source], made[target]], 1)
            weights = torch.exp(functional.leaky_relu(score(pairs), 0.2).clamp(max=8).float())
            sums = torch.zeros(len(nodes), 1, device=nodes.device).index_add(0, target, weights)
            shares = (weights / (sums[target] + 1e-6)).to(made.dtype)
            got = torch.zeros_like(made).index_add(0, target, made[source] * shares)
            state = functional.elu(state + got)
        decided: Tensor = self.head(state)
        return decided


class PlainAttention(nn.Module):
    """A decoder that writes its attention out: products, a mask and a softmax in fp32."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(32_000, width)
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.wide = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 32_000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.words(tokens)
        batch, length, width = state.shape
        hidden = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        for index, (qkv, out, wide) in enumerate(zip(self.qkv, self.out, self.wide, strict=True)):
            parts = qkv(self.norms[2 * index](state)).view(batch, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
            seen = torch.softmax(scores.masked_fill(hidden, -1e4), -1, dtype=torch.float32)
            seen = functional.dropout(seen.to(value.dtype), 0.1) @ value
            state = state + out(seen.transpose(1, 2).reshape(batch, length, width))
            state = state + wide(self.norms[2 * index + 1](state))
        logits: Tensor = self.head(state)
        return logits.flatten(0, 1)


class Tagger(nn.Module):
    """Words, LSTMs in both directions, a label for each word."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.words = nn.Embedding(40_000, 512)
        self.recurrent = nn.LSTM(512, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 17)

    def forward(self, tokens: Tensor) -> Tensor:
        labels: Tensor = self.head(self.recurrent(self.words(tokens))[0])
        return labels.flatten(0, 1)


def _separator(batch: int) -> Made:
    return Separator(), torch.randn(batch, 1, 32_000), torch.randn(batch, 2, 32_000), pixel_loss


def _vocoder(batch: int) -> Made:
    return Vocoder(), torch.randn(batch, 80, 32), torch.randn(batch, 1, 8192), pixel_loss


def _heart(batch: int) -> Made:
    return HeartNet(), torch.randn(batch, 12, 4096), random_words(batch, 1, 27)[:, 0], class_loss


def _painter(batch: int) -> Made:
    images = torch.randn(2, batch, 3, 256, 256)
    return Painter(), images[0], images[1], pixel_loss


def _coder(batch: int) -> Made:
    images = torch.randn(2, batch, 3, 128, 128)
    return ImageCoder(), images[0], images[1], pixel_loss


def _towers(batch: int) -> Made:
    picked = torch.randint(500_000, (2, batch, 4))
    return Towers(), (picked[0], picked[1]), torch.rand(batch, 1), click_loss


def _graph(batch: int) -> Made:
    """``batch`` thousand nodes with twelve edges each."""
    nodes = batch * 1000
    inputs = (torch.randn(nodes, 64), torch.randint(nodes, (2, 12 * nodes)))
    return GraphAttention(), inputs, torch.randint(10, (nodes,)), class_loss


def _plain(batch: int) -> Made:
    tokens = random_words(batch, 768, 32_000)
    return PlainAttention(), tokens, tokens.flatten(), class_loss


def _tagger(batch: int) -> Made:
    tokens = random_words(batch, 64, 40_000)
    return Tagger(), tokens, random_words(batch, 64, 17).flatten(), class_loss


def _group_norm(batch: int) -> Made:
    import torchvision

    model = torchvision.models.resnet50(norm_layer=lambda width: nn.GroupNorm(32, width))
    return model, torch.randn(batch, 3, 224, 224), random_words(batch, 1, 1000)[:, 0], class_loss


def _deeplab(batch: int) -> Made:
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    )
    images, labels = torch.randn(batch, 3, 320, 320), torch.randint(21, (batch, 320, 320))
    return model, images, labels, lambda made, wanted: class_loss(made["out"], wanted)


def _clip(batch: int) -> Made:
    import torchvision

    model = torchvision.models.video.mc3_18(weights=None)
    return model, torch.randn(batch, 3, 12, 128, 128), random_words(batch, 1, 51)[:, 0], class_loss


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    tokens = random_words(batch, 384, 30_000)
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if name == "pegasus":
        model: nn.Module = library.PegasusForConditionalGeneration(
            library.PegasusConfig(
                vocab_size=40_000,
                d_model=640,
                encoder_layers=5,
                decoder_layers=5,
                encoder_attention_heads=10,
                decoder_attention_heads=10,
                encoder_ffn_dim=2560,
                decoder_ffn_dim=2560,
                use_cache=False,
                decoder_start_token_id=0,
            )
        )
    elif name == "neox":
        model = library.GPTNeoXForCausalLM(
            library.GPTNeoXConfig(
                vocab_size=32_000,
                hidden_size=896,
                num_hidden_layers=8,
                num_attention_heads=14,
                intermediate_size=3584,
                use_cache=False,
            )
        )
    elif name == "qwen2":
        model = library.Qwen2ForCausalLM(
            library.Qwen2Config(
                vocab_size=32_000,
                hidden_size=768,
                intermediate_size=2048,
                num_hidden_layers=10,
                num_attention_heads=12,
                num_key_value_heads=2,
                use_cache=False,
            )
        )
    else:
        model = library.SegformerForImageClassification(library.SegformerConfig(num_labels=1000))
        inputs = {
            "pixel_values": torch.randn(batch, 3, 224, 224),
            "labels": random_words(batch, 1, 1000)[:, 0],
        }
    return model, inputs, None, None


NETWORKS: Networks = {
    "separator": (_separator, (16,), "adam"),
    "vocoder": (_vocoder, (160,), "adamw"),
    "heart": (_heart, (128,), "adamw"),
    "painter": (_painter, (32,), "adam"),
    "image-coder": (_coder, (32,), "adamw"),
    "towers": (_towers, (32_768,), "sgd"),
    "graph-attention": (_graph, (60,), "adamw"),
    "plain-attention": (_plain, (16,), "adamw"),
    "tagger": (_tagger, (512,), "sgd"),
    "resnet50-group-norm": (_group_norm, (64,), "sgd"),
    "deeplab": (_deeplab, (16,), "sgd"),
    "video-mixed": (_clip, (24,), "sgd"),
    "pegasus": (lambda batch: _transformers("pegasus", batch), (24,), "adamw"),
    "neox": (lambda batch: _transformers("neox", batch), (24,), "adamw"),
    "qwen2": (lambda batch: _transformers("qwen2", batch), (24,), "adamw"),
    "segformer": (lambda batch: _transformers("segformer", batch), (128,), "adamw"),
}
