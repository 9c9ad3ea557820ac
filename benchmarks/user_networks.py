"""Networks of the kinds that users bring and the zoo does not have: sound, video, graphs, text.

They are held against predictions by `benchmarks/outside_zoo.py`. Some choices were made by looking
at them; docs/evidence/kernels.md says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster.device import Precision
from paceline.steps import Step
from paceline.steps.source import OPTIMIZERS


class SpeechEncoder(nn.Module):
    """Strided convolutions over raw sound, then a transformer, as in wav2vec 2.0."""

    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        windows = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
        blocks: list[nn.Module] = []
        channels = 1
        for side, stride in windows:
            blocks += [nn.Conv1d(channels, width, side, stride=stride, bias=False)]
            blocks += [nn.GroupNorm(32, width), nn.GELU()]
            channels = width
        self.sound = nn.Sequential(*blocks)
        self.place = nn.Conv1d(width, width, 127, padding=63, groups=16)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.text = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 32)

    def forward(self, sound: Tensor) -> Tensor:
        frames = self.sound(sound)
        frames = (frames + functional.gelu(self.place(frames))).transpose(1, 2)
        letters: Tensor = self.head(self.text(frames)).mean(1)
        return letters


class WaveNet(nn.Module):
    """Dilated gated convolutions over sound."""

    def __init__(self, width: int = 128, blocks: int = 3, depth: int = 10) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        self.filters = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**level, padding=2**level)
            for _ in range(blocks)
            for level in range(depth)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.filters)
        self.head = nn.Conv1d(width, 256, 1)

    def forward(self, sound: Tensor) -> Tensor:
        signal = self.start(sound)
        skipped = torch.zeros_like(signal)
        for dilated, mix in zip(self.filters, self.mixes, strict=True):
            made = functional.glu(dilated(signal)[..., : signal.shape[-1]], 1)
            skipped = skipped + made
            signal = signal + mix(made)
        decided: Tensor = self.head(functional.relu(skipped)).mean(2)
        return decided


class VolumeUNet(nn.Module):
    """A U-Net over volumes, as for medical images."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(
            self._block(before, after)
            for before, after in zip([1, *sizes[:-1]], sizes, strict=True)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(after, before, 2, stride=2)
            for before, after in reversed(list(pairwise(sizes)))
        )
        self.join = nn.ModuleList(self._block(2 * size, size) for size in reversed(sizes[:-1]))
        self.head = nn.Conv3d(width, 4, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(before, after, 3, padding=1, bias=False),
            nn.GroupNorm(8, after),
            nn.ReLU(inplace=True),
            nn.Conv3d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(8, after),
            nn.ReLU(inplace=True),
        )

    def forward(self, volume: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            volume = block(volume if level == 0 else functional.max_pool3d(volume, 2))
            kept.append(volume)
        volume = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            volume = join(torch.cat([up(volume), kept.pop()], 1))
        made: Tensor = self.head(volume)
        return made


class Denoiser(nn.Module):
    """A diffusion model's U-Net: group norm, SiLU, attention where images are small."""

    def __init__(self, width: int = 128, levels: tuple[int, ...] = (1, 2, 2, 4)) -> None:
        super().__init__()
        self.start = nn.Conv2d(4, width, 3, padding=1)
        sizes = [width * each for each in levels]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = width
        for size in sizes:
            self.down.append(_Residual(before, size))
            before = size
        self.middle = _SelfAttention(before)
        for size, joined in zip(reversed(sizes), reversed(sizes), strict=True):
            self.up.append(_Residual(before + joined, size))
            before = size
        self.norm, self.head = nn.GroupNorm(32, before), nn.Conv2d(before, 4, 3, padding=1)

    def forward(self, noisy: Tensor) -> Tensor:
        image, kept = self.start(noisy), []
        for level, block in enumerate(self.down):
            image = block(image if level == 0 else functional.avg_pool2d(image, 2))
            kept.append(image)
        image = self.middle(image)
        for level, block in enumerate(self.up):
            if level:
                image = functional.interpolate(image, scale_factor=2.0, mode="nearest")
            image = block(torch.cat([image, kept.pop()], 1))
        made: Tensor = self.head(functional.silu(self.norm(image)))
        return made


class _Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(32, before), nn.GroupNorm(32, after)))
        self.convolutions = nn.ModuleList(
            (nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1))
        )
        self.short = nn.Conv2d(before, after, 1)

    def forward(self, image: Tensor) -> Tensor:
        made = image
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            made = convolution(functional.silu(norm(made)))
        summed: Tensor = self.short(image) + made
        return summed


class _SelfAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(32, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, image: Tensor) -> Tensor:
        batch, width, high, wide = image.shape
        parts = self.qkv(self.norm(image)).reshape(batch, 3, width // 64, 64, high * wide)
        query, key, value = parts.transpose(3, 4).unbind(1)
        seen = functional.scaled_dot_product_attention(query, key, value)
        made: Tensor = image + self.out(seen.transpose(2, 3).reshape(batch, width, high, wide))
        return made


class Segmenter(nn.Module):
    """Dilated convolutions and bilinear upsampling, as in DeepLab."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        sizes = ((3, 64, 2, 1), (64, 128, 2, 1), (128, 256, 2, 1), (256, 512, 1, 2))
        self.body = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, stride=stride, padding=dilation, dilation=dilation),
                    nn.BatchNorm2d(b),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(b, b, 3, padding=dilation, dilation=dilation),
                    nn.BatchNorm2d(b),
                    nn.ReLU(inplace=True),
                )
                for a, b, stride, dilation in sizes
            )
        )
        self.views = nn.ModuleList(
            nn.Conv2d(512, 256, 3, padding=rate, dilation=rate) for rate in (6, 12, 18)
        )
        self.mix = nn.Sequential(nn.Conv2d(768, 256, 1), nn.BatchNorm2d(256), nn.ReLU())
        self.head = nn.Conv2d(256, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        seen = self.body(image)
        mixed = self.mix(torch.cat([view(seen) for view in self.views], 1))
        return functional.interpolate(
            self.head(mixed), size=image.shape[-2:], mode="bilinear", align_corners=False
        )


class Generator(nn.Module):
    """Images from noise by transposed convolutions, as in DCGAN."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = (width * 16, width * 8, width * 4, width * 2, width)
        blocks: list[nn.Module] = [nn.ConvTranspose2d(128, sizes[0], 4)]
        for before, after in pairwise(sizes):
            blocks += [nn.BatchNorm2d(before), nn.ReLU(inplace=True)]
            blocks += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
        self.body = nn.Sequential(*blocks, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.head = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1)

    def forward(self, noise: Tensor) -> Tensor:
        return torch.tanh(self.head(self.body(noise)))


class Recommender(nn.Module):
    """Embeddings of categories with dense gradients, their products, and small layers: a DLRM."""

    def __init__(self, tables: int = 16, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _layers(13, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = _layers(width + pairs, 1024, 512, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        first = self.bottom(dense)
        rows = [table(categories[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([first, *rows], 1)
        products = features @ features.transpose(1, 2)
        left, right = torch.tril_indices(
            products.shape[1], products.shape[1], -1, device=dense.device
        )
        joined = torch.cat([first, products[:, left, right]], 1)
        clicked: Tensor = self.top(joined)
        return clicked


def _layers(*sizes: int) -> nn.Module:
    made: list[nn.Module] = []
    for before, after in pairwise(sizes):
        made += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class GraphNet(nn.Module):
    """Messages along edges, gathered and added up at nodes."""

    def __init__(self, given: int = 128, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.start = nn.Linear(given, width)
        self.messages = nn.ModuleList(_layers(2 * width, width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 40)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        state = self.start(nodes)
        source, target = edges[0], edges[1]
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = message(torch.cat([state[source], state.index_select(0, target)], 1))
            got = torch.zeros_like(state, dtype=sent.dtype).index_add(0, target, sent)
            state = norm(
                state + functional.relu(update(torch.cat([state, got.to(state.dtype)], 1)))
            )
        decided: Tensor = self.head(state)
        return decided


class LanguageLstm(nn.Module):
    """Words, two LSTM layers, words."""

    def __init__(self, words: int = 33_000, width: int = 1024) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, dropout=0.2)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.words(tokens))[0])
        return logits.flatten(0, 1)


class SpeechGru(nn.Module):
    """Convolutions over a spectrogram and GRUs in both directions, as in Deep Speech 2."""

    def __init__(self, width: int = 800, layers: int = 4) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.recurrent = nn.GRU(32 * 41, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 29)

    def forward(self, spectrogram: Tensor) -> Tensor:
        image = self.image(spectrogram)
        frames = image.flatten(1, 2).transpose(1, 2)
        letters: Tensor = self.head(self.recurrent(frames)[0])
        return letters.mean(1)


class BiasedTransformer(nn.Module):
    """A transformer with a learned bias for each distance, as in T5."""

    def __init__(
        self, width: int = 512, heads: int = 8, layers: int = 6, length: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(32_000, width)
        self.bias = nn.Parameter(torch.empty(heads, length, length))
        self.layers = nn.ModuleList(_BiasedLayer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 32_000)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.words(tokens)
        for layer in self.layers:
            state = layer(state, self.bias)
        logits: Tensor = self.head(state)
        return logits.flatten(0, 1)


class _BiasedLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, state: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = state.shape
        parts = self.qkv(self.norms[0](state)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mask = bias.to(query.dtype).expand(batch, -1, -1, -1)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        state = state + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        made: Tensor = state + self.wide(self.norms[1](state))
        return made


def pixel_loss(made: Tensor, wanted: Tensor) -> Tensor:
    return functional.mse_loss(made.float(), wanted)


def class_loss(made: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(made, wanted)


def click_loss(made: Tensor, wanted: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(made, wanted)


def random_words(batch: int, length: int, most: int) -> Tensor:
    return torch.randint(most, (batch, length))


Made = tuple[nn.Module, Any, Any, Callable[[Any, Any], Tensor] | None]
Networks = Mapping[str, tuple[Callable[[int], Made], tuple[int, ...], str]]
"""By name: what makes it for a batch size, the batch sizes to try, the optimizer."""


def _speech(batch: int) -> Made:
    return (
        SpeechEncoder(),
        torch.randn(batch, 1, 80_000),
        random_words(batch, 1, 32)[:, 0],
        class_loss,
    )


def _wavenet(batch: int) -> Made:
    return WaveNet(), torch.randn(batch, 1, 16_000), random_words(batch, 1, 256)[:, 0], class_loss


def _volume(batch: int) -> Made:
    return (
        VolumeUNet(),
        torch.randn(batch, 1, 96, 96, 96),
        torch.randint(4, (batch, 96, 96, 96)),
        class_loss,
    )


def _denoiser(batch: int) -> Made:
    image = torch.randn(2, batch, 4, 64, 64)
    return Denoiser(), image[0], image[1], pixel_loss


def _segmenter(batch: int) -> Made:
    return (
        Segmenter(),
        torch.randn(batch, 3, 512, 512),
        torch.randint(21, (batch, 512, 512)),
        class_loss,
    )


def _generator(batch: int) -> Made:
    return Generator(), torch.randn(batch, 128, 1, 1), torch.randn(batch, 3, 128, 128), pixel_loss


def _recommender(batch: int) -> Made:
    inputs = (torch.randn(batch, 13), torch.randint(100_000, (batch, 16)))
    return Recommender(), inputs, torch.rand(batch, 1), click_loss


def _graph(batch: int) -> Made:
    """``batch`` thousand nodes with ten edges each."""
    nodes = batch * 1000
    inputs = (torch.randn(nodes, 128), torch.randint(nodes, (2, 10 * nodes)))
    return GraphNet(), inputs, torch.randint(40, (nodes,)), class_loss


def _language_lstm(batch: int) -> Made:
    tokens = random_words(128, batch, 33_000)
    return LanguageLstm(), tokens, tokens.flatten(), class_loss


def _speech_gru(batch: int) -> Made:
    return (
        SpeechGru(),
        torch.randn(batch, 1, 161, 600),
        random_words(batch, 1, 29)[:, 0],
        class_loss,
    )


def _biased(batch: int) -> Made:
    tokens = random_words(batch, 512, 32_000)
    return BiasedTransformer(), tokens, tokens.flatten(), class_loss


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    tokens = random_words(batch, 512, 30_000)
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if name == "t5":
        model: nn.Module = library.T5ForConditionalGeneration(
            library.T5Config(
                d_model=512,
                num_layers=6,
                num_heads=8,
                d_ff=2048,
                use_cache=False,
                decoder_start_token_id=0,
            )
        )
    elif name == "bart":
        model = library.BartForConditionalGeneration(
            library.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, use_cache=False)
        )
    elif name == "llama-gqa":
        model = library.LlamaForCausalLM(
            library.LlamaConfig(
                hidden_size=1024,
                intermediate_size=2816,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=4,
                vocab_size=32_000,
                use_cache=False,
            )
        )
    else:
        model = library.WhisperForConditionalGeneration(
            library.WhisperConfig(
                d_model=512,
                encoder_layers=6,
                decoder_layers=6,
                encoder_attention_heads=8,
                decoder_attention_heads=8,
                encoder_ffn_dim=2048,
                decoder_ffn_dim=2048,
                use_cache=False,
            )
        )
        inputs = {
            "input_features": torch.randn(batch, 80, 3000),
            "labels": random_words(batch, 128, 30_000),
        }
    return model, inputs, None, None


def _video(batch: int) -> Made:
    import torchvision

    model = torchvision.models.video.r2plus1d_18(weights=None)
    return model, torch.randn(batch, 3, 16, 112, 112), random_words(batch, 1, 400)[:, 0], class_loss


NETWORKS: Networks = {
    "speech-encoder": (_speech, (16,), "adamw"),
    "wavenet": (_wavenet, (16,), "adamw"),
    "volume-unet": (_volume, (4,), "adamw"),
    "denoiser": (_denoiser, (32,), "adamw"),
    "segmenter": (_segmenter, (16,), "sgd"),
    "generator": (_generator, (128,), "adam"),
    "recommender": (_recommender, (8192,), "sgd"),
    "graph-net": (_graph, (50,), "adamw"),
    "language-lstm": (_language_lstm, (64,), "sgd"),
    "speech-gru": (_speech_gru, (32,), "sgd"),
    "biased-transformer": (_biased, (32,), "adamw"),
    "t5": (lambda batch: _transformers("t5", batch), (16,), "adamw"),
    "bart": (lambda batch: _transformers("bart", batch), (16,), "adamw"),
    "llama-gqa": (lambda batch: _transformers("llama-gqa", batch), (16,), "adamw"),
    "whisper": (lambda batch: _transformers("whisper", batch), (8,), "adamw"),
    "video": (_video, (16,), "sgd"),
}


def make_step(
    name: str,
    batch: int,
    precision: Precision,
    *,
    device: str = "meta",
    networks: Networks = NETWORKS,
) -> Step:
    """The training step of one of these networks; off the meta device it can really run."""
    make, _, optimizer = networks[name]
    with torch.device(device):
        model, inputs, targets, loss = make(batch)
    return Step(
        model=model,
        inputs=inputs,
        targets=targets,
        loss=loss,
        optimizer=OPTIMIZERS[optimizer],
        precision=precision,
        num_samples=batch,
        name=f"users:{name}",
    )
