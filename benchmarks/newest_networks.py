"""Networks first predicted after all others: `benchmarks/outside_zoo.py --networks newest`.

Of the same kinds as those in `user_networks.py`, `fresh_networks.py` and `later_networks.py`, with
batches that keep the device busy. They were measured before they were predicted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, pixel_loss, random_words


class Unmixer(nn.Module):
    """Instruments from a song: strided and transposed convolutions around an LSTM, as in Demucs."""

    def __init__(self, width: int = 48, depth: int = 5) -> None:
        super().__init__()
        sizes = [2, *(width * 2**level for level in range(depth))]
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(before, after, 8, stride=4, padding=2),
                nn.ReLU(),
                nn.Conv1d(after, 2 * after, 1),
                nn.GLU(1),
            )
            for before, after in pairwise(sizes)
        )
        self.recurrent = nn.LSTM(sizes[-1], sizes[-1], 1, bidirectional=True)
        self.mix = nn.Linear(2 * sizes[-1], sizes[-1])
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(after, 2 * after, 3, padding=1),
                nn.GLU(1),
                nn.ConvTranspose1d(after, before if level else 8, 8, stride=4, padding=2),
                nn.ReLU() if level else nn.Identity(),
            )
            for level, (before, after) in reversed(list(enumerate(pairwise(sizes))))
        )

    def forward(self, song: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            song = block(song)
            kept.append(song)
        song = self.mix(self.recurrent(song.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for block in self.up:
            song = block(song + kept.pop())
        return song


class Conformer(nn.Module):
    """Attention, then depthwise convolutions over time, in turns."""

    def __init__(self, width: int = 384, layers: int = 8) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2)
        )
        self.project = nn.Linear(width * 19, width)
        self.layers = nn.ModuleList(_ConformerLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, spectrogram: Tensor) -> Tensor:
        state = self.project(self.start(spectrogram).permute(0, 2, 1, 3).flatten(2))
        for layer in self.layers:
            state = layer(state)
        letters: Tensor = self.head(state.mean(1))
        return letters


class _ConformerLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.window = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm, self.mix = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, state: Tensor) -> Tensor:
        batch, length, width = state.shape
        made = self.queries(self.norms[0](state)).view(batch, length, 3, 6, width // 6)
        q, k, v = made.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        state = state + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        signal = functional.glu(self.gate(self.norms[1](state).transpose(1, 2)), 1)
        signal = self.mix(functional.silu(self.batch_norm(self.window(signal))))
        state = state + signal.transpose(1, 2)
        grown: Tensor = state + self.wide(self.norms[2](state))
        return grown


class Translator(nn.Module):
    """Letters by residual blocks of dilated convolutions, as in ByteNet."""

    def __init__(self, width: int = 512, blocks: int = 10) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.blocks = nn.Sequential(
            *(_TranslatorBlock(width, 2 ** (level % 5)) for level in range(blocks))
        )
        self.head = nn.Conv1d(width, 256, 1)

    def forward(self, letters: Tensor) -> Tensor:
        translated: Tensor = self.head(self.blocks(self.letters(letters).transpose(1, 2)))
        return translated


class _TranslatorBlock(nn.Module):
    """A dilated convolution that sees nothing that is still to come."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.narrow = nn.Conv1d(width, width // 2, 1)
        self.norm = nn.GroupNorm(1, width // 2)
        self.window = nn.Conv1d(width // 2, width // 2, 5, dilation=dilation)
        self.widen = nn.Conv1d(width // 2, width, 1)
        self.before = 4 * dilation

    def forward(self, state: Tensor) -> Tensor:
        made = self.norm(functional.relu(self.narrow(functional.relu(state))))
        made = functional.relu(self.window(functional.pad(made, (self.before, 0))))
        grown: Tensor = state + self.widen(made)
        return grown


class Scanner(nn.Module):
    """Classes of scans: strided residual blocks over volumes, with batch norm, as in MedicalNet."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.start = nn.Conv3d(1, width, 7, stride=2, padding=3, bias=False)
        sizes = (width, width, 2 * width, 4 * width, 8 * width)
        self.blocks = nn.ModuleList(
            _VolumeBlock(before, after, 2 if level in (1, 2) else 1, 2 if level == 3 else 1)
            for level, (before, after) in enumerate(pairwise(sizes))
        )
        self.norm, self.head = nn.BatchNorm3d(width), nn.Linear(8 * width, 10)

    def forward(self, scan: Tensor) -> Tensor:
        scan = functional.max_pool3d(functional.relu(self.norm(self.start(scan))), 3, 2, 1)
        for block in self.blocks:
            scan = block(scan)
        found: Tensor = self.head(scan.mean((2, 3, 4)))
        return found


class _VolumeBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            (
                nn.Conv3d(before, after, 3, stride, dilation, dilation, bias=False),
                nn.Conv3d(after, after, 3, 1, dilation, dilation, bias=False),
            )
        )
        self.norms = nn.ModuleList(nn.BatchNorm3d(after) for _ in range(3))
        self.short = nn.Conv3d(before, after, 1, stride, bias=False)

    def forward(self, scan: Tensor) -> Tensor:
        made = functional.relu(self.norms[0](self.windows[0](scan)))
        made = self.norms[1](self.windows[1](made))
        return functional.relu(made + self.norms[2](self.short(scan)))


class Enlarger(nn.Module):
    """Large images from small ones: plain residual blocks and a pixel shuffle, as in EDSR."""

    def __init__(self, width: int = 96, blocks: int = 12) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.up = nn.Sequential(nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, small: Tensor) -> Tensor:
        image = first = self.start(small)
        for block in self.blocks:
            image = image + 0.1 * block(image)
        large: Tensor = self.head(self.up(image + first))
        return large


class Scene(nn.Module):
    """Colours along rays from positions in waves, as in NeRF."""

    def __init__(self, width: int = 256, waves: int = 10, depth: int = 8) -> None:
        super().__init__()
        self.waves = waves
        given = 3 + 6 * waves
        self.layers = nn.ModuleList(
            nn.Linear(given if level == 0 else width + given * (level == 4), width)
            for level in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, places: Tensor) -> Tensor:
        turns = [places]
        for wave in range(self.waves):
            turns += [torch.sin(places * 2.0**wave), torch.cos(places * 2.0**wave)]
        given = torch.cat(turns, -1)
        state = given
        for level, layer in enumerate(self.layers):
            state = functional.relu(layer(torch.cat([state, given], -1) if level == 4 else state))
        made = self.head(state)
        kept = torch.cumprod(1.0 - torch.sigmoid(made[..., 3]) + 1e-6, 1)
        colours: Tensor = (kept.unsqueeze(-1) * torch.sigmoid(made[..., :3])).sum(1)
        return colours


class Codebook(nn.Module):
    """Images by the nearest of 512 codes, as in VQ-VAE."""

    def __init__(self, width: int = 128, codes: int = 512) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.codes = nn.Embedding(codes, width)
        self.up = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width // 2, 3, 4, stride=2, padding=1),
        )

    def forward(self, image: Tensor) -> Tensor:
        made = self.down(image).permute(0, 2, 3, 1)
        flat = made.reshape(-1, made.shape[-1])
        table = self.codes.weight
        far = (flat**2).sum(1, keepdim=True) - 2 * flat @ table.t() + (table**2).sum(1)
        near = self.codes(far.argmin(1)).view(made.shape)
        passed = made + (near - made).detach() + (near - near.detach())
        drawn: Tensor = self.up(passed.permute(0, 3, 1, 2))
        return drawn


class LineReader(nn.Module):
    """Letters of a line of text: convolutions that flatten it, LSTMs along it, as in CRNN."""

    def __init__(self, letters: int = 96) -> None:
        super().__init__()
        sizes = (1, 64, 128, 256, 256, 512, 512)
        pools: tuple[Any, ...] = (2, 2, None, (2, 1), None, (2, 1))
        blocks: list[nn.Module] = []
        for (before, after), pool in zip(pairwise(sizes), pools, strict=True):
            blocks += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            blocks += [nn.ReLU(inplace=True), nn.MaxPool2d(pool) if pool else nn.Identity()]
        self.windows = nn.Sequential(*blocks)
        self.recurrent = nn.LSTM(1024, 256, 2, bidirectional=True)
        self.head = nn.Linear(512, letters)

    def forward(self, line: Tensor) -> Tensor:
        seen = self.windows(line).flatten(1, 2).permute(2, 0, 1)
        found: Tensor = self.head(self.recurrent(seen)[0]).flatten(0, 1)
        return found


class GraphTransformer(nn.Module):
    """Nodes that attend to their neighbours: scores along edges, scaled at nodes, summed."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.start = nn.Linear(100, width)
        self.queries = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.wide = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 40)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        state = self.start(nodes)
        for queries, norm, wide in zip(self.queries, self.norms, self.wide, strict=True):
            q, k, v = queries(state).view(len(state), 3, self.heads, -1).unbind(1)
            scores = (q[target] * k[source]).sum(-1).float().clamp(-5, 5).exp()
            total = torch.zeros(len(state), self.heads, device=state.device)
            total = total.index_add(0, target, scores)
            weights = (scores / (total[target] + 1e-6)).to(v.dtype).unsqueeze(-1)
            sent = torch.zeros_like(v).index_add(0, target, weights * v[source])
            state = state + sent.flatten(1)
            state = norm(state + wide(state))
        found: Tensor = self.head(state)
        return found


class ScaleSpace(nn.Module):
    """Classes of pixels: parallel dilated convolutions with group norm, joined and enlarged."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.GroupNorm(8, after),
                nn.SiLU(inplace=True),
                nn.Conv2d(after, after, 3, padding=1),
                nn.GroupNorm(8, after),
                nn.SiLU(inplace=True),
            )
            for before, after in pairwise((3, width, 2 * width, 4 * width))
        )
        self.scales = nn.ModuleList(
            nn.Conv2d(4 * width, 2 * width, 3, padding=reach, dilation=reach)
            for reach in (1, 3, 6, 9, 12)
        )
        self.join = nn.Conv2d(10 * width, 4 * width, 1)
        self.head = nn.Conv2d(5 * width, 20, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        first = image = self.down[0](image)
        for block in self.down[1:]:
            image = block(image)
        image = self.join(torch.cat([functional.relu(each(image)) for each in self.scales], 1))
        image = functional.interpolate(image, scale_factor=4.0, mode="bilinear")
        classes = self.head(torch.cat([image, first], 1))
        return functional.interpolate(classes, scale_factor=2.0, mode="bilinear")


def _unmixer(batch: int) -> Made:
    sounds = torch.randn(2, batch, 8, 65_536)
    return Unmixer(), sounds[0, :, :2], sounds[1], pixel_loss


def _conformer(batch: int) -> Made:
    words = random_words(batch, 1, 1000)[:, 0]
    return Conformer(), torch.randn(batch, 1, 1024, 80), words, class_loss


def _translator(batch: int) -> Made:
    letters = torch.randint(256, (2, batch, 1024))
    return Translator(), letters[0], letters[1], class_loss


def _scanner(batch: int) -> Made:
    labels = random_words(batch, 1, 10)[:, 0]
    return Scanner(), torch.randn(batch, 1, 64, 128, 128), labels, class_loss


def _enlarger(batch: int) -> Made:
    return Enlarger(), torch.randn(batch, 3, 64, 64), torch.randn(batch, 3, 128, 128), pixel_loss


def _scene(batch: int) -> Made:
    return Scene(), torch.randn(batch, 128, 3), torch.rand(batch, 3), pixel_loss


def _codebook(batch: int) -> Made:
    images = torch.randn(batch, 3, 128, 128)
    return Codebook(), images, images.clone(), pixel_loss


def _line(batch: int) -> Made:
    letters = random_words(batch, 64, 96).t().flatten()
    return LineReader(), torch.randn(batch, 1, 32, 256), letters, class_loss


def _graph(batch: int) -> Made:
    """``batch`` thousand nodes with eight edges each."""
    nodes = batch * 1000
    inputs = (torch.randn(nodes, 100), torch.randint(nodes, (2, 8 * nodes)))
    return GraphTransformer(), inputs, torch.randint(40, (nodes,)), class_loss


def _scales(batch: int) -> Made:
    labels = torch.randint(20, (batch, 256, 256))
    return ScaleSpace(), torch.randn(batch, 3, 256, 256), labels, class_loss


def _torchvision(name: str, batch: int) -> Made:
    import torchvision

    labels = random_words(batch, 1, 400)[:, 0]
    if name == "fcn":
        wanted = torch.randint(21, (batch, 224, 224))
        model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None)
        return model, torch.randn(batch, 3, 224, 224), wanted, _fcn_loss
    if name == "s3d":
        model = torchvision.models.video.s3d(weights=None)
        return model, torch.randn(batch, 3, 16, 224, 224), labels, class_loss
    model = torchvision.models.video.swin3d_t(weights=None)
    return model, torch.randn(batch, 3, 8, 224, 224), labels, class_loss


def _fcn_loss(made: dict[str, Tensor], wanted: Tensor) -> Tensor:
    return class_loss(made["out"], wanted)


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    tokens = random_words(batch, 384, 30_000)
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if name == "deberta":
        model: nn.Module = library.DebertaV2ForMaskedLM(
            library.DebertaV2Config(
                vocab_size=32_000,
                hidden_size=768,
                num_hidden_layers=6,
                num_attention_heads=12,
                intermediate_size=3072,
                relative_attention=True,
                position_buckets=256,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                pos_att_type=["p2c", "c2p"],
            )
        )
    elif name == "bloom":
        model = library.BloomForCausalLM(
            library.BloomConfig(
                vocab_size=32_000, hidden_size=1024, n_layer=8, n_head=16, use_cache=False
            )
        )
    else:
        model = library.Wav2Vec2ForSequenceClassification(
            library.Wav2Vec2Config(num_hidden_layers=6, num_labels=20, mask_time_prob=0.0)
        )
        inputs = {
            "input_values": torch.randn(batch, 48_000),
            "labels": random_words(batch, 1, 20)[:, 0],
        }
    return model, inputs, None, None


NETWORKS: Networks = {
    "unmixer": (_unmixer, (64,), "adam"),
    "conformer": (_conformer, (64,), "adamw"),
    "translator": (_translator, (128,), "adam"),
    "scanner": (_scanner, (16,), "sgd"),
    "enlarger": (_enlarger, (64,), "adam"),
    "scene": (_scene, (8192,), "adam"),
    "codebook": (_codebook, (256,), "adam"),
    "line-reader": (_line, (512,), "adam"),
    "graph-transformer": (_graph, (100,), "adamw"),
    "scale-space": (_scales, (64,), "sgd"),
    "fcn": (lambda batch: _torchvision("fcn", batch), (32,), "sgd"),
    "s3d": (lambda batch: _torchvision("s3d", batch), (16,), "sgd"),
    "swin-video": (lambda batch: _torchvision("swin3d", batch), (16,), "adamw"),
    "deberta": (lambda batch: _transformers("deberta", batch), (48,), "adamw"),
    "bloom": (lambda batch: _transformers("bloom", batch), (48,), "adamw"),
    "wav2vec2": (lambda batch: _transformers("wav2vec2", batch), (48,), "adamw"),
}
