"""Networks measured last, after every other choice: `benchmarks/outside_zoo.py --networks later`.

Of the same kinds as those in `user_networks.py` and `fresh_networks.py`. Nothing was chosen by
looking at them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, click_loss, pixel_loss, random_words


class SpeechCtc(nn.Module):
    """Strided convolutions over a spectrogram, then GRUs in both directions, as in Deep Speech."""

    def __init__(self, width: int = 640, layers: int = 4) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.recurrent = nn.GRU(32 * 40, width, layers, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, 29))

    def forward(self, spectrogram: Tensor) -> Tensor:
        frames = self.start(spectrogram).flatten(1, 2).permute(2, 0, 1)
        letters: Tensor = self.head(self.recurrent(frames)[0]).flatten(0, 1)
        return letters


class Reader(nn.Module):
    """Words from their letters by convolutions, LSTMs in both directions, as in ELMo."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.letters = nn.Embedding(262, 16)
        windows = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256))
        self.windows = nn.ModuleList(nn.Conv1d(16, count, side) for side, count in windows)
        self.mix = nn.Linear(512, width)
        self.recurrent = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 12_000)

    def forward(self, letters: Tensor) -> Tensor:
        batch, length, _ = letters.shape
        spelled = self.letters(letters).flatten(0, 1).transpose(1, 2)
        words = torch.cat([torch.relu(each(spelled).amax(2)) for each in self.windows], 1)
        states = self.recurrent(self.mix(words).view(batch, length, -1))[0]
        found: Tensor = self.head(states).flatten(0, 1)
        return found


class Forecaster(nn.Module):
    """Dilated causal convolutions over many series, with weight norm, as in a TCN."""

    def __init__(self, width: int = 192, depth: int = 7) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        sizes = (64, *(width for _ in range(depth)))
        self.windows, self.shorts = nn.ModuleList(), nn.ModuleList()
        for level, (before, after) in enumerate(pairwise(sizes)):
            reach = 2**level
            self.windows.append(
                nn.Sequential(
                    nn.ConstantPad1d((2 * reach, 0), 0.0),
                    norm(nn.Conv1d(before, after, 3, dilation=reach)),
                    nn.ReLU(),
                    nn.Dropout(0.1),
                )
            )
            self.shorts.append(nn.Conv1d(before, after, 1))
        self.head = nn.Conv1d(width, 64, 1)

    def forward(self, series: Tensor) -> Tensor:
        for window, short in zip(self.windows, self.shorts, strict=True):
            series = torch.relu(window(series) + short(series))
        made: Tensor = self.head(series)
        return made


class VolumeNet(nn.Module):
    """Segments volumes: strided and transposed convolutions with group norm, as in V-Net."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width, 8 * width)
        self.start = _volume_block(1, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv3d(a, b, 2, stride=2), _volume_block(b, b))
            for a, b in pairwise(sizes)
        )
        back = sizes[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, stride=2) for a, b in pairwise(back))
        self.mix = nn.ModuleList(_volume_block(2 * b, b) for b in back[1:])
        self.head = nn.Conv3d(width, 4, 1)

    def forward(self, volume: Tensor) -> Tensor:
        kept = [self.start(volume)]
        for down in self.down:
            kept.append(down(kept[-1]))
        state = kept.pop()
        for up, mix in zip(self.up, self.mix, strict=True):
            state = mix(torch.cat([up(state), kept.pop()], 1))
        made: Tensor = self.head(state)
        return made


def _volume_block(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, padding=1, bias=False), nn.GroupNorm(8, after), nn.PReLU(after)
    )


class Pyramid(nn.Module):
    """Classes of pixels at four resolutions that are resized and summed, as in HRNet."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        sizes = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(
                    nn.Sequential(
                        nn.Conv2d(size, size, 3, padding=1, bias=False),
                        nn.BatchNorm2d(size),
                        nn.ReLU(inplace=True),
                    )
                    for _ in range(3)
                )
            )
            for size in sizes
        )
        self.level = nn.ModuleList(nn.Conv2d(size, width, 1) for size in sizes)
        self.head = nn.Conv2d(4 * width, 19, 1)

    def forward(self, images: Tensor) -> Tensor:
        states = [self.start(images)]
        for down in self.down:
            states.append(down(states[-1]))
        sides = states[0].shape[-2:]
        found = []
        for state, block, level in zip(states, self.blocks, self.level, strict=True):
            own = level(block(state))
            found.append(functional.interpolate(own, sides, mode="bilinear", align_corners=False))
        made = self.head(torch.cat(found, 1))
        return functional.interpolate(made, images.shape[-2:], mode="bilinear")


class PointNet(nn.Module):
    """Classes of point clouds: neighbours are gathered, mixed and pooled, as in PointNet++."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Sequential(
            nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 1), nn.ReLU()
        )
        self.far = nn.Sequential(
            nn.Conv1d(128, 256, 1), nn.BatchNorm1d(256), nn.ReLU(), nn.Conv1d(256, 1024, 1)
        )
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.Dropout(0.4), nn.Linear(256, 40))

    def forward(self, points: Tensor, neighbours: Tensor) -> Tensor:
        batch, channels, _ = points.shape
        _, centres, around = neighbours.shape
        picked = neighbours.flatten(1).unsqueeze(1).expand(-1, channels, -1)
        groups = points.gather(2, picked).view(batch, channels, centres, around)
        states = self.near(groups).amax(3)
        made: Tensor = self.head(self.far(states).amax(2))
        return made


class Molecules(nn.Module):
    """Messages along edges, summed at their ends, with edge features, as in GINE."""

    def __init__(self, width: int = 256, layers: int = 5) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(120, width), nn.Embedding(24, width)
        self.mix = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width),
                nn.BatchNorm1d(width),
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor) -> Tensor:
        state, kinds = self.atoms(atoms), self.bonds(bonds)
        for mix in self.mix:
            messages = torch.relu(state.index_select(0, edges[0]) + kinds)
            heard = torch.zeros_like(state).index_add(0, edges[1], messages.to(state.dtype))
            state = torch.relu(mix(state + heard)) + state
        made: Tensor = self.head(state)
        return made


class Clicks(nn.Module):
    """Dense and sparse features, products of all pairs of embeddings, as in DLRM."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.dense = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs = (tables + 1) * tables // 2
        self.pairs = nn.Buffer(torch.tril_indices(tables + 1, tables + 1, -1))
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()
        )
        self.head = nn.Linear(512, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        own = self.dense(dense)
        looked = [table(sparse[:, index]) for index, table in enumerate(self.tables)]
        every = torch.stack([own, *(each.to(own.dtype) for each in looked)], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        made: Tensor = self.head(self.top(torch.cat([own, flat], 1)))
        return made


class LongReader(nn.Module):
    """A few states that read a long sequence by plain attention, as in Perceiver."""

    def __init__(self, width: int = 768, states: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(262, width)
        self.states = nn.Parameter(torch.randn(states, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.both = nn.Linear(width, 2 * width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, norm_first=True)
        self.mix = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 100)

    def forward(self, text: Tensor) -> Tensor:
        read = self.norm(self.bytes(text))
        states = self.states.expand(len(text), -1, -1)
        keys, values = self.both(read).chunk(2, 2)
        scores = torch.bmm(self.query(states), keys.transpose(1, 2)) * keys.shape[-1] ** -0.5
        states = states + torch.bmm(scores.softmax(2), values)
        made: Tensor = self.head(self.mix(states).mean(1))
        return made


class Judge(nn.Module):
    """Tells images from others: residual blocks that blur and halve, as in StyleGAN2."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 128, 256, 512, 512)
        self.start = nn.Conv2d(3, sizes[0], 1)
        self.first = nn.ModuleList(nn.Conv2d(size, size, 3, padding=1) for size in sizes[:-1])
        self.second = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(sizes)
        )
        self.short = nn.ModuleList(nn.Conv2d(a, b, 1, bias=False) for a, b in pairwise(sizes))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(512 * 8 * 8, 512), nn.Linear(512, 1))
        window = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.window = nn.Buffer(torch.outer(window, window) / 64)

    def _blur(self, image: Tensor) -> Tensor:
        channels = image.shape[1]
        window = self.window.to(image.dtype).expand(channels, 1, 4, 4)
        return functional.conv2d(image, window, padding=2, groups=channels)[..., 1:, 1:]

    def forward(self, images: Tensor) -> Tensor:
        state = functional.leaky_relu(self.start(images), 0.2)
        for first, second, short in zip(self.first, self.second, self.short, strict=True):
            made = functional.leaky_relu(first(state), 0.2)
            made = functional.leaky_relu(second(self._blur(made)), 0.2)
            state = (made + short(functional.avg_pool2d(state, 2))) * 0.7071
        decided: Tensor = self.head(state)
        return decided


class Mixer(nn.Module):
    """Perceptrons across patches and across wide channels, as in MLP-Mixer."""

    def __init__(self, width: int = 1536, patches: int = 196, layers: int = 6) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 16, stride=16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.across = nn.ModuleList(_perceptron(patches, 2 * patches) for _ in range(layers))
        self.within = nn.ModuleList(_perceptron(width, 4 * width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        state = self.start(images).flatten(2).transpose(1, 2)
        for index, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            mixed = across(self.norms[2 * index](state).transpose(1, 2))
            state = state + mixed.transpose(1, 2)
            state = state + within(self.norms[2 * index + 1](state))
        made: Tensor = self.head(state.mean(1))
        return made


def _perceptron(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def _speech(batch: int) -> Made:
    return (
        SpeechCtc(),
        torch.randn(batch, 1, 160, 400),
        random_words(batch, 200, 29).flatten(),
        class_loss,
    )


def _reader(batch: int) -> Made:
    letters = torch.randint(262, (batch, 32, 24))
    return Reader(), letters, random_words(batch, 32, 12_000).flatten(), class_loss


def _forecaster(batch: int) -> Made:
    series = torch.randn(2, batch, 64, 1024)
    return Forecaster(), series[0], series[1], pixel_loss


def _volume(batch: int) -> Made:
    labels = torch.randint(4, (batch, 64, 64, 64))
    return VolumeNet(), torch.randn(batch, 1, 64, 64, 64), labels, class_loss


def _pyramid(batch: int) -> Made:
    labels = torch.randint(19, (batch, 256, 256))
    return Pyramid(), torch.randn(batch, 3, 256, 256), labels, class_loss


def _points(batch: int) -> Made:
    inputs = (torch.randn(batch, 6, 2048), torch.randint(2048, (batch, 512, 32)))
    return PointNet(), inputs, random_words(batch, 1, 40)[:, 0], class_loss


def _molecules(batch: int) -> Made:
    """``batch`` thousand atoms with two bonds each, in both directions."""
    atoms = batch * 1000
    edges = torch.randint(atoms, (2, 4 * atoms))
    inputs = (torch.randint(120, (atoms,)), edges, torch.randint(24, (4 * atoms,)))
    return Molecules(), inputs, torch.randn(atoms, 1), pixel_loss


def _clicks(batch: int) -> Made:
    inputs = (torch.randn(batch, 13), torch.randint(100_000, (batch, 26)))
    return Clicks(), inputs, torch.rand(batch, 1), click_loss


def _long(batch: int) -> Made:
    text = torch.randint(262, (batch, 8192))
    return LongReader(), text, random_words(batch, 1, 100)[:, 0], class_loss


def _judge(batch: int) -> Made:
    return Judge(), torch.randn(batch, 3, 128, 128), torch.rand(batch, 1), click_loss


def _mixer(batch: int) -> Made:
    return Mixer(), torch.randn(batch, 3, 224, 224), random_words(batch, 1, 1000)[:, 0], class_loss


def _torchvision(name: str, batch: int) -> Made:
    import torchvision

    labels = random_words(batch, 1, 400)[:, 0]
    if name == "video":
        model = torchvision.models.video.r2plus1d_18(weights=None)
        return model, torch.randn(batch, 3, 8, 112, 112), labels, class_loss
    model = torchvision.models.maxvit_t(weights=None, num_classes=400)
    return model, torch.randn(batch, 3, 224, 224), labels, class_loss


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    tokens = random_words(batch, 256, 30_000)
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if name == "mbart":
        model: nn.Module = library.MBartForConditionalGeneration(
            library.MBartConfig(
                vocab_size=32_000,
                d_model=768,
                encoder_layers=4,
                decoder_layers=4,
                encoder_attention_heads=12,
                decoder_attention_heads=12,
                encoder_ffn_dim=3072,
                decoder_ffn_dim=3072,
                use_cache=False,
                decoder_start_token_id=0,
            )
        )
    elif name == "phi":
        model = library.PhiForCausalLM(
            library.PhiConfig(
                vocab_size=32_000,
                hidden_size=1024,
                intermediate_size=4096,
                num_hidden_layers=8,
                num_attention_heads=16,
                use_cache=False,
            )
        )
    else:
        model = library.AlbertForMaskedLM(
            library.AlbertConfig(vocab_size=30_000, num_hidden_layers=12)
        )
    return model, inputs, None, None


NETWORKS: Networks = {
    "speech-ctc": (_speech, (128,), "sgd"),
    "letter-reader": (_reader, (192,), "adam"),
    "forecaster": (_forecaster, (192,), "adam"),
    "volume-net": (_volume, (8,), "adam"),
    "pyramid": (_pyramid, (64,), "sgd"),
    "point-net": (_points, (64,), "adam"),
    "molecules": (_molecules, (80,), "adam"),
    "clicks": (_clicks, (16_384,), "sgd"),
    "long-reader": (_long, (32,), "adamw"),
    "judge": (_judge, (96,), "adam"),
    "mixer": (_mixer, (128,), "adamw"),
    "video-factored": (lambda batch: _torchvision("video", batch), (32,), "sgd"),
    "maxvit": (lambda batch: _torchvision("maxvit", batch), (96,), "adamw"),
    "mbart": (lambda batch: _transformers("mbart", batch), (48,), "adamw"),
    "phi": (lambda batch: _transformers("phi", batch), (32,), "adamw"),
    "albert": (lambda batch: _transformers("albert", batch), (64,), "adamw"),
}
