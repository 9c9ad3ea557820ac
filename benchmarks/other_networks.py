"""Fourteen more networks to predict: `benchmarks/outside_zoo.py --networks other`.

Of the same kinds as those in the other files, in other architectures and sizes. They were written
without a look at any prediction, to be measured before they are first predicted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, click_loss, pixel_loss, random_words


class Dictation(nn.Module):
    """Letters from speech by wide depthwise convolutions over time, as in QuartzNet."""

    def __init__(self, letters: int = 29) -> None:
        super().__init__()
        blocks = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
        self.start = nn.Sequential(_sound_layer(64, 256, 33, stride=2), nn.ReLU(inplace=True))
        self.blocks, self.shorts = nn.ModuleList(), nn.ModuleList()
        for (before, _), (after, side) in pairwise(((256, 33), *blocks)):
            layers = [_sound_layer(before, after, side)]
            for _ in range(4):
                layers += [nn.ReLU(inplace=True), _sound_layer(after, after, side)]
            self.blocks.append(nn.Sequential(*layers))
            short = nn.Conv1d(before, after, 1, bias=False)
            self.shorts.append(nn.Sequential(short, nn.BatchNorm1d(after)))
        self.end = nn.Sequential(_sound_layer(512, 512, 87, reach=2), nn.ReLU(inplace=True))
        self.last, self.norm = nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024)
        self.head = nn.Conv1d(1024, letters, 1)

    def forward(self, spectra: Tensor) -> Tensor:
        state = self.start(spectra)
        for block, short in zip(self.blocks, self.shorts, strict=True):
            state = functional.dropout(functional.relu(block(state) + short(state)), 0.1)
        heard: Tensor = self.head(functional.relu(self.norm(self.last(self.end(state)))))
        return heard


def _sound_layer(before: int, after: int, side: int, stride: int = 1, reach: int = 1) -> nn.Module:
    padding = reach * (side // 2)
    alone = nn.Conv1d(before, before, side, stride, padding, reach, groups=before, bias=False)
    mix = nn.Conv1d(before, after, 1, bias=False)
    return nn.Sequential(alone, mix, nn.BatchNorm1d(after))


_Sides = tuple[int, int, int]


class TwoSpeeds(nn.Module):
    """What happens in videos: many frames thinly and few ones richly, as in SlowFast."""

    def __init__(self, kinds: int = 174) -> None:
        super().__init__()
        self.slow_start = _video_layer(3, 64, (1, 7, 7), (1, 2, 2))
        self.fast_start = _video_layer(3, 8, (5, 7, 7), (1, 2, 2))
        self.pool = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.slow, self.fast, self.links = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        slow, fast = 64, 8
        for level, count in enumerate((3, 4, 6, 3)):
            self.links.append(_video_layer(fast, 2 * fast, (5, 1, 1), (4, 1, 1)))
            for blocks, before, inner, reach in (
                (self.slow, slow + 2 * fast, 64 * 2**level, 3 if level > 1 else 1),
                (self.fast, fast, 8 * 2**level, 3),
            ):
                stage = nn.Sequential(_VideoBlock(before, inner, 2 if level else 1, reach))
                stage.extend(_VideoBlock(4 * inner, inner, 1, reach) for _ in range(count - 1))
                blocks.append(stage)
            slow, fast = 256 * 2**level, 32 * 2**level
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(slow + fast, kinds))

    def forward(self, frames: Tensor) -> Tensor:
        fast = self.pool(functional.relu(self.fast_start(frames)))
        slow = self.pool(functional.relu(self.slow_start(frames[:, :, ::4])))
        for link, rich, thin in zip(self.links, self.slow, self.fast, strict=True):
            slow, fast = rich(torch.cat([slow, functional.relu(link(fast))], 1)), thin(fast)
        seen: Tensor = self.head(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))
        return seen


def _video_layer(before: int, after: int, sides: _Sides, steps: _Sides = (1, 1, 1)) -> nn.Module:
    padding = (sides[0] // 2, sides[1] // 2, sides[2] // 2)
    window = nn.Conv3d(before, after, sides, steps, padding, bias=False)
    return nn.Sequential(window, nn.BatchNorm3d(after))


class _VideoBlock(nn.Module):
    def __init__(self, before: int, inner: int, stride: int, reach: int) -> None:
        super().__init__()
        after, steps = 4 * inner, (1, stride, stride)
        first = _video_layer(before, inner, (reach, 1, 1))
        second = _video_layer(inner, inner, (1, 3, 3), steps)
        third = _video_layer(inner, after, (1, 1, 1))
        self.body = nn.Sequential(
            first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True), third
        )
        self.short: nn.Module = nn.Identity()
        if before != after:
            self.short = _video_layer(before, after, (1, 1, 1), steps)

    def forward(self, video: Tensor) -> Tensor:
        return functional.relu(self.short(video) + self.body(video))


class Lanes(nn.Module):
    """Classes of pixels on roads: thin dilated windows, transposed convolutions, as in ERFNet."""

    def __init__(self, kinds: int = 20) -> None:
        super().__init__()
        layers: list[nn.Module] = [_Halved(3, 16), _Halved(16, 64)]
        layers += [*(_ThinBlock(64, 1, 0.03) for _ in range(5)), _Halved(64, 128)]
        layers += [_ThinBlock(128, reach, 0.3) for reach in (2, 4, 8, 16) * 2]
        for before, after in pairwise((128, 64, 16)):
            layers += [nn.ConvTranspose2d(before, after, 3, 2, 1, 1), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(inplace=True), *(_ThinBlock(after, 1, 0.0) for _ in range(2))]
        self.body, self.head = nn.Sequential(*layers), nn.ConvTranspose2d(16, kinds, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


class _Halved(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.window = nn.Conv2d(before, after - before, 3, 2, 1)
        self.norm = nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, image: Tensor) -> Tensor:
        joined = torch.cat([self.window(image), functional.max_pool2d(image, 2)], 1)
        return functional.relu(self.norm(joined))


class _ThinBlock(nn.Module):
    def __init__(self, width: int, reach: int, dropped: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for far in (1, reach):
            layers += [
                nn.ReLU(inplace=bool(layers)),
                nn.Conv2d(width, width, (3, 1), padding=(far, 0), dilation=(far, 1)),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, (1, 3), padding=(0, far), dilation=(1, far)),
                nn.BatchNorm2d(width, eps=1e-3),
            ]
        self.body = nn.Sequential(*layers[1:], nn.Dropout2d(dropped))

    def forward(self, image: Tensor) -> Tensor:
        return functional.relu(image + self.body(image))


class Answers(nn.Module):
    """Where a text answers a question: LSTMs in both directions and attention, as in BiDAF."""

    def __init__(self, words: int = 60_000, width: int = 100) -> None:
        super().__init__()
        self.words, self.letters = nn.Embedding(words, width), nn.Embedding(200, 16)
        self.spelled = nn.Conv1d(16, width, 5)
        self.highways = nn.ModuleList(nn.Linear(2 * width, 4 * width) for _ in range(2))
        self.read = _both_ways(2 * width, width, 1)
        self.of_text, self.of_asked = nn.Linear(2 * width, 1), nn.Linear(2 * width, 1)
        self.of_both = nn.Parameter(torch.randn(2 * width) * 0.05)
        self.model, self.ended = _both_ways(8 * width, width, 2), _both_ways(2 * width, width, 1)
        self.start, self.end = nn.Linear(10 * width, 1), nn.Linear(10 * width, 1)

    def _embed(self, words: Tensor, letters: Tensor) -> Tensor:
        spelled = self.spelled(self.letters(letters).flatten(0, 1).transpose(1, 2)).amax(2)
        state = torch.cat([self.words(words), spelled.view(*words.shape, -1)], 2)
        for highway in self.highways:
            made, gate = highway(functional.dropout(state, 0.2)).chunk(2, 2)
            share = torch.sigmoid(gate)
            state = share * functional.relu(made) + (1 - share) * state
        read: Tensor = self.read(state)[0]
        return read

    def forward(
        self, text: Tensor, text_letters: Tensor, asked: Tensor, asked_letters: Tensor, gone: Tensor
    ) -> tuple[Tensor, Tensor]:
        told, question = self._embed(text, text_letters), self._embed(asked, asked_letters)
        scores = torch.bmm(told * self.of_both, question.transpose(1, 2))
        scores = (scores + self.of_text(told) + self.of_asked(question).transpose(1, 2)).float()
        heard = torch.bmm(scores.softmax(2), question.float())
        weights = scores.amax(2).masked_fill(gone, -1e9).softmax(1)
        back = torch.bmm(weights.unsqueeze(1), told.float()).expand(heard.shape)
        joined = torch.cat([told, heard, told * heard, told * back], 2)
        model = self.model(functional.dropout(joined, 0.2))[0]
        ended = self.ended(model)[0]
        starts = self.start(torch.cat([joined, model], 2))[..., 0]
        ends = self.end(torch.cat([joined, ended], 2))[..., 0]
        return starts.float().masked_fill(gone, -1e9), ends.float().masked_fill(gone, -1e9)


def _both_ways(before: int, width: int, layers: int) -> nn.LSTM:
    dropped = 0.2 if layers > 1 else 0.0
    return nn.LSTM(before, width, layers, batch_first=True, dropout=dropped, bidirectional=True)


class Sessions(nn.Module):
    """The next of many items that a visitor looks at, by a GRU, as in GRU4Rec."""

    def __init__(self, items: int = 37_000, width: int = 160, hidden: int = 288) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, padding_idx=0)
        self.recurrent = nn.GRU(width, hidden, batch_first=True)
        self.norm, self.narrow = nn.LayerNorm(hidden), nn.Linear(hidden, width)
        self.bias = nn.Parameter(torch.zeros(items))

    def forward(self, items: Tensor) -> Tensor:
        seen = self.recurrent(functional.dropout(self.items(items), 0.25))[0]
        state = self.narrow(functional.dropout(self.norm(seen), 0.1))
        return functional.linear(state.flatten(0, 1), self.items.weight, self.bias)


class FieldAttention(nn.Module):
    """Clicks from fields that attend to each other, beside plain layers, as in AutoInt."""

    def __init__(self, rows: int = 3_000_000, width: int = 24, wide: int = 64) -> None:
        super().__init__()
        self.rows, self.numbers = nn.Embedding(rows, width), nn.Parameter(torch.randn(13, width))
        sizes = (width, wide, wide, wide)
        self.parts = nn.ModuleList(nn.Linear(a, 4 * b, bias=False) for a, b in pairwise(sizes))
        layers: list[nn.Module] = []
        for before, after in pairwise((39 * width, 416, 416)):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(0.2)]
        self.plain = nn.Sequential(*layers)
        self.head = nn.Linear(39 * wide + 416, 1)

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        state = torch.cat([self.rows(rows), numbers.unsqueeze(2) * self.numbers], 1)
        plain = self.plain(state.flatten(1))
        for parts in self.parts:
            query, key, value, short = parts(state).chunk(4, 2)
            heads = [part.unflatten(2, (2, -1)).transpose(1, 2) for part in (query, key, value)]
            scores = (heads[0] @ heads[1].transpose(2, 3)).float().softmax(3)
            seen = (scores @ heads[2].float()).transpose(1, 2).flatten(2)
            state = functional.relu(seen + short)
        clicked: Tensor = self.head(torch.cat([state.flatten(1), plain], 1))
        return clicked


class Meshes(nn.Module):
    """What flows over meshes: edges and nodes that change in turns, as in MeshGraphNets."""

    def __init__(self, width: int = 128, layers: int = 10) -> None:
        super().__init__()
        self.nodes, self.edges = _mesh_layers(11, width), _mesh_layers(4, width)
        self.along = nn.ModuleList(_mesh_layers(3 * width, width) for _ in range(layers))
        self.at = nn.ModuleList(_mesh_layers(2 * width, width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, nodes: Tensor, edges: Tensor, ends: Tensor) -> Tensor:
        state, sent = self.nodes(nodes), self.edges(edges)
        for along, at in zip(self.along, self.at, strict=True):
            sent = sent + along(torch.cat([sent, state[ends[0]], state[ends[1]]], 1))
            heard = sent.new_zeros(state.shape).index_add(0, ends[1], sent)
            state = state + at(torch.cat([state, heard], 1))
        flows: Tensor = self.head(state)
        return flows


def _mesh_layers(before: int, width: int) -> nn.Module:
    first, second = nn.Linear(before, width), nn.Linear(width, width)
    third, norm = nn.Linear(width, width), nn.LayerNorm(width)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, norm)


class Sharpener(nn.Module):
    """Noise in large images, given small ones and how noisy they are, as in SR3."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        sizes = [width * size for size in (1, 2, 4, 8)]
        self.waves = nn.Buffer(torch.logspace(0.0, 4.0, width // 2))
        wide = 4 * width
        self.noise = nn.Sequential(nn.Linear(width, wide), nn.SiLU(), nn.Linear(wide, wide))
        self.start = nn.Conv2d(6, width, 3, padding=1)
        self.down, self.up, kept, before = nn.ModuleList(), nn.ModuleList(), [width], width
        for after in sizes:
            if after > width:
                self.down.append(nn.Conv2d(before, before, 3, stride=2, padding=1))
                kept.append(before)
            for _ in range(2):
                self.down.append(_NoisyBlock(before, after, wide))
                kept.append(before := after)
        self.middle = nn.ModuleList(_NoisyBlock(before, before, wide) for _ in range(2))
        self.norm = nn.GroupNorm(16, before)
        self.attention = nn.MultiheadAttention(before, 6, batch_first=True)
        for after in reversed(sizes):
            if after < before:
                self.up.append(nn.Conv2d(before, before, 3, padding=1))
            for _ in range(3):
                self.up.append(_NoisyBlock(before + kept.pop(), after, wide))
                before = after
        self.end = nn.Sequential(*_noisy_layer(width, 3))

    def forward(self, small: Tensor, noisy: Tensor, level: Tensor) -> Tensor:
        angles = level.unsqueeze(1) * self.waves
        noise = self.noise(torch.cat([angles.sin(), angles.cos()], 1))
        large = functional.interpolate(small, noisy.shape[2:], mode="bicubic")
        kept = [self.start(torch.cat([large, noisy], 1))]
        for step in self.down:
            kept.append(step(kept[-1], *((noise,) if isinstance(step, _NoisyBlock) else ())))
        state = self.middle[0](kept[-1], noise)
        places = self.norm(state).flatten(2).transpose(1, 2)
        seen = self.attention(places, places, places, need_weights=False)[0]
        state = self.middle[1](state + seen.transpose(1, 2).reshape(state.shape), noise)
        for step in self.up:
            if isinstance(step, _NoisyBlock):
                state = step(torch.cat([state, kept.pop()], 1), noise)
            else:
                state = step(functional.interpolate(state, scale_factor=2.0))
        found: Tensor = self.end(state)
        return found


def _noisy_layer(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.GroupNorm(16, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)


class _NoisyBlock(nn.Module):
    def __init__(self, before: int, after: int, given: int) -> None:
        super().__init__()
        self.first, self.noise = (
            nn.Sequential(*_noisy_layer(before, after)),
            nn.Linear(given, after),
        )
        self.second = nn.Sequential(*_noisy_layer(after, after))
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        state = self.first(image) + self.noise(noise)[:, :, None, None]
        made: Tensor = self.short(image) + self.second(state)
        return made


class Rain(nn.Module):
    """Rain of the next hour by LSTMs of convolutions, with norms over whole images."""

    def __init__(self, width: int = 64, side: int = 32) -> None:
        super().__init__()
        self.width = width
        sizes, image = (16 + width, 2 * width, 2 * width), (4 * width, side, side)
        self.windows = nn.ModuleList(nn.Conv2d(size, 4 * width, 5, padding=2) for size in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(image) for _ in sizes)
        self.head = nn.Conv2d(width, 16, 1)

    def forward(self, frames: Tensor) -> Tensor:
        patches = functional.pixel_unshuffle(frames, 4)
        empty = patches.new_zeros(len(patches), self.width, *patches.shape[3:])
        states, memories = [empty] * len(self.norms), [empty] * len(self.norms)
        made: list[Tensor] = []
        for time in range(11):
            state = patches[:, time] if time < 6 else made[-1]
            for layer, (window, norm) in enumerate(zip(self.windows, self.norms, strict=True)):
                gates = norm(window(torch.cat([state, states[layer]], 1)))
                enters, stays, leaves, new = gates.chunk(4, 1)
                memory = torch.sigmoid(stays + 1.0) * memories[layer]
                memory = memory + torch.sigmoid(enters) * torch.tanh(new)
                state = torch.sigmoid(leaves) * torch.tanh(memory)
                states[layer], memories[layer] = state, memory
            made.append(self.head(state))
        return functional.pixel_shuffle(torch.stack(made, 1), 4)


class Poses(nn.Module):
    """Joints of people as maps, which two hourglasses make in turn, as by Newell."""

    def __init__(self, width: int = 256, joints: int = 16) -> None:
        super().__init__()
        first = (nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), _PoseBlock(64, 128))
        second = (nn.MaxPool2d(2), _PoseBlock(128, 128), _PoseBlock(128, width))
        self.start = nn.Sequential(*first, *second)
        self.glasses = nn.ModuleList(
            nn.Sequential(
                _Nested(width, 4), _PoseBlock(width, width), nn.Conv2d(width, width, 1), nn.ReLU()
            )
            for _ in range(2)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, joints, 1) for _ in range(2))
        self.again, self.maps = nn.Conv2d(width, width, 1), nn.Conv2d(joints, width, 1)

    def forward(self, images: Tensor) -> Tensor:
        state = self.start(images)
        found = self.glasses[0](state)
        made = self.heads[0](found)
        state = state + self.again(found) + self.maps(made)
        return torch.stack([made, self.heads[1](self.glasses[1](state))], 1)


class _PoseBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        half = after // 2
        layers: list[nn.Module] = []
        for ours, theirs, side in ((before, half, 1), (half, half, 3), (half, after, 1)):
            layers += [nn.BatchNorm2d(ours), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(ours, theirs, side, padding=side // 2)]
        self.body = nn.Sequential(*layers)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, image: Tensor) -> Tensor:
        grown: Tensor = self.short(image) + self.body(image)
        return grown


class _Nested(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.beside, self.before = _PoseBlock(width, width), _PoseBlock(width, width)
        self.after = _PoseBlock(width, width)
        self.inner = _Nested(width, depth - 1) if depth > 1 else _PoseBlock(width, width)

    def forward(self, image: Tensor) -> Tensor:
        inner = self.after(self.inner(self.before(functional.max_pool2d(image, 2))))
        grown: Tensor = self.beside(image) + functional.interpolate(inner, scale_factor=2.0)
        return grown


class SetDetector(nn.Module):
    """Objects as a set: a ResNet, then a transformer that is asked for each of them: a DETR."""

    def __init__(self, kinds: int = 80, width: int = 256, asked: int = 100) -> None:
        super().__init__()
        import torchvision

        frozen = torchvision.ops.FrozenBatchNorm2d
        body = torchvision.models.resnet50(weights=None, norm_layer=frozen)
        self.body = nn.Sequential(*list(body.children())[:-2])
        self.narrow = nn.Conv2d(2048, width, 1)
        self.rows, self.columns = nn.Embedding(40, width // 2), nn.Embedding(40, width // 2)
        self.asked = nn.Embedding(asked, width)
        self.transformer = nn.Transformer(width, 8, 5, 5, 1536, batch_first=True)
        self.kinds, self.boxes = nn.Linear(width, kinds + 1), nn.Linear(width, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.narrow(self.body(images))
        high, wide = seen.shape[2:]
        rows = self.rows.weight[:high, None].expand(-1, wide, -1)
        columns = self.columns.weight[None, :wide].expand(high, -1, -1)
        memory = torch.cat([rows, columns], 2).flatten(0, 1) + seen.flatten(2).transpose(1, 2)
        state = self.transformer(memory, self.asked.weight.expand(len(images), -1, -1))
        return self.kinds(state), self.boxes(state).float().sigmoid()


def _dictation(batch: int) -> Made:
    """Eight seconds of speech, with the letter of each moment."""
    return Dictation(), torch.randn(batch, 64, 800), random_words(batch, 400, 29), class_loss


def _two_speeds(batch: int) -> Made:
    frames = torch.randn(batch, 3, 32, 160, 160)
    return TwoSpeeds(), frames, torch.randint(174, (batch,)), class_loss


def _lanes(batch: int) -> Made:
    labels = torch.randint(20, (batch, 320, 640))
    return Lanes(), torch.randn(batch, 3, 320, 640), labels, class_loss


def _answers(batch: int) -> Made:
    """Texts of up to 288 words, questions of 28, words of 14 letters."""
    inputs = (
        random_words(batch, 288, 60_000),
        torch.randint(200, (batch, 288, 14)),
        random_words(batch, 28, 60_000),
        torch.randint(200, (batch, 28, 14)),
        torch.arange(288) >= torch.randint(96, 289, (batch, 1)),
    )
    return Answers(), inputs, torch.randint(96, (2, batch)), _span_loss


def _span_loss(made: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    return class_loss(made[0], wanted[0]) + class_loss(made[1], wanted[1])


def _sessions(batch: int) -> Made:
    wanted = torch.randint(1, 37_000, (batch * 24,))
    return Sessions(), random_words(batch, 24, 37_000), wanted, class_loss


def _fields(batch: int) -> Made:
    inputs = (torch.randn(batch, 13), torch.randint(3_000_000, (batch, 26)))
    return FieldAttention(), inputs, torch.rand(batch, 1), click_loss


def _meshes(batch: int) -> Made:
    """Meshes of 1850 nodes with six neighbours each."""
    nodes = 1850 * batch
    heads = torch.arange(nodes).repeat_interleave(6)
    tails = heads // 1850 * 1850 + torch.randint(1850, (6 * nodes,))
    inputs = (torch.randn(nodes, 11), torch.randn(6 * nodes, 4), torch.stack([tails, heads]))
    return Meshes(), inputs, torch.randn(nodes, 3), pixel_loss


def _sharpener(batch: int) -> Made:
    noisy, noise = torch.randn(2, batch, 3, 128, 128)
    return Sharpener(), (torch.randn(batch, 3, 32, 32), noisy, torch.rand(batch)), noise, pixel_loss


def _rain(batch: int) -> Made:
    """Six images, and the eleven after the first."""
    seen, wanted = torch.rand(batch, 6, 1, 128, 128), torch.rand(batch, 11, 1, 128, 128)
    return Rain(), seen, wanted, pixel_loss


def _poses(batch: int) -> Made:
    maps = torch.rand(batch, 2, 16, 64, 64)
    return Poses(), torch.randn(batch, 3, 256, 256), maps, pixel_loss


def _set_detector(batch: int) -> Made:
    """Images with twelve objects each, given which answers are compared with them."""
    matched = torch.rand(batch, 100).argsort(1)[:, :12]
    wanted = (torch.randint(80, (batch, 12)), 0.3 + 0.4 * torch.rand(batch, 12, 4), matched)
    return SetDetector(), torch.randn(batch, 3, 416, 544), wanted, _set_loss


def _set_loss(made: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Cross entropy of kinds, distances of boxes, and how little they overlap."""
    (logits, boxes), (kinds, places, matched) = made, wanted
    all_kinds = torch.full(logits.shape[:2], 80, device=kinds.device).scatter(1, matched, kinds)
    found = boxes.gather(1, matched[:, :, None].expand(-1, -1, 4))
    (low, high), (other_low, other_high) = _corners(found), _corners(places)
    shared = _area(torch.minimum(high, other_high) - torch.maximum(low, other_low))
    around = _area(torch.maximum(high, other_high) - torch.minimum(low, other_low))
    both = _area(high - low) + _area(other_high - other_low) - shared
    overlap = shared / both - (around - both) / around
    lost = class_loss(logits.flatten(0, 1), all_kinds.flatten())
    return lost + 5.0 * functional.l1_loss(found, places) + 2.0 * (1.0 - overlap).mean()


def _corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    middle, size = boxes.chunk(2, 2)
    return middle - 0.5 * size, middle + 0.5 * size


def _area(size: Tensor) -> Tensor:
    return size.clamp(min=0.0).prod(2)


def _swin(batch: int) -> Made:
    """torchvision's Swin V2: cosines between places in shifted windows."""
    import torchvision

    model = torchvision.models.swin_v2_t(weights=None, num_classes=200)
    return model, torch.randn(batch, 3, 256, 256), torch.randint(200, (batch,)), class_loss


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    if name == "qwen3":
        tokens = random_words(batch, 896, 26_000)
        model: nn.Module = library.Qwen3ForCausalLM(
            library.Qwen3Config(
                vocab_size=26_000,
                hidden_size=896,
                intermediate_size=2560,
                num_hidden_layers=6,
                num_attention_heads=14,
                num_key_value_heads=2,
                head_dim=64,
                use_cache=False,
            )
        )
        inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    else:  # TrOCR: lines of text from images of them
        seen = library.ViTConfig(image_size=(64, 640), patch_size=8, num_hidden_layers=6)
        written = library.TrOCRConfig(vocab_size=24_000, decoder_layers=4, use_cache=False)
        config = library.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, written)
        config.decoder_start_token_id, config.pad_token_id = 2, 1
        model = library.VisionEncoderDecoderModel(config)
        images = torch.randn(batch, 3, 64, 640)
        inputs = {"pixel_values": images, "labels": random_words(batch, 56, 24_000)}
    return model, inputs, None, None


NETWORKS: Networks = {
    "dictation": (_dictation, (96,), "adamw"),
    "two-speeds": (_two_speeds, (24,), "sgd"),
    "lanes": (_lanes, (48,), "adam"),
    "answers": (_answers, (192,), "adam"),
    "sessions": (_sessions, (768,), "adam"),
    "field-attention": (_fields, (24_576,), "adam"),
    "meshes": (_meshes, (36,), "adam"),
    "sharpener": (_sharpener, (24,), "adam"),
    "rain": (_rain, (40,), "adam"),
    "poses": (_poses, (48,), "adam"),
    "set-detector": (_set_detector, (32,), "adamw"),
    "swin-v2": (_swin, (72,), "adamw"),
    "trocr": (lambda batch: _transformers("trocr", batch), (18,), "adamw"),
    "qwen3": (lambda batch: _transformers("qwen3", batch), (9,), "adamw"),
}
