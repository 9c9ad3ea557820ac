"""Sixteen more networks to predict: `benchmarks/outside_zoo.py --networks blind`.

Of architectures that none of the other files has. They were written without a look at any
prediction, to be measured before they are first predicted.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, click_loss, pixel_loss, random_words


class Scans(nn.Module):
    """Organs in scans: a transformer over cubes, transposed convolutions up, as in UNETR."""

    def __init__(self, kinds: int = 14, width: int = 576, thin: int = 16) -> None:
        super().__init__()
        self.cubes = nn.Conv3d(1, width, 16, 16)
        self.places = nn.Parameter(torch.randn(1, 216, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 9, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(8)
        )
        self.norm = nn.LayerNorm(width)
        sizes = [thin * size for size in (1, 2, 4, 8)]
        self.first = _ScanBlock(1, thin)
        self.sides = nn.ModuleList()
        for level, size in enumerate(sizes[1:]):
            steps: list[nn.Module] = [nn.ConvTranspose3d(width, size, 2, 2)]
            for _ in range(2 - level):
                steps += [nn.ConvTranspose3d(size, size, 2, 2), _ScanBlock(size, size)]
            self.sides.append(nn.Sequential(*steps))
        self.ups, self.joins = nn.ModuleList(), nn.ModuleList()
        for before, after in pairwise((width, *reversed(sizes))):
            self.ups.append(nn.ConvTranspose3d(before, after, 2, 2))
            self.joins.append(_ScanBlock(2 * after, after))
        self.head = nn.Conv3d(thin, kinds, 1)

    def forward(self, scans: Tensor) -> Tensor:
        seen = self.cubes(scans)
        state = seen.flatten(2).transpose(1, 2) + self.places
        kept: list[Tensor] = [self.first(scans)]
        for depth, layer in enumerate(self.layers):
            state = layer(state)
            if depth in (1, 3, 5):
                side = self.sides[depth // 2]
                kept.append(side(state.transpose(1, 2).reshape(seen.shape)))
        image = self.norm(state).transpose(1, 2).reshape(seen.shape)
        for up, join in zip(self.ups, self.joins, strict=True):
            image = join(torch.cat([up(image), kept.pop()], 1))
        organs: Tensor = self.head(image)
        return organs


class _ScanBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(before, after, 3, padding=1, bias=False),
            nn.InstanceNorm3d(after),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(after, after, 3, padding=1, bias=False),
            nn.InstanceNorm3d(after),
        )
        self.short: nn.Module = nn.Identity()
        if before != after:
            short = nn.Conv3d(before, after, 1, bias=False)
            self.short = nn.Sequential(short, nn.InstanceNorm3d(after))

    def forward(self, volume: Tensor) -> Tensor:
        return functional.leaky_relu(self.body(volume) + self.short(volume), 0.01)


class Faces(nn.Module):
    """Images from noise whose styles scale the channels, as StyleGAN2's generator."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        sizes = (width, width, width, width // 2, width // 4, width // 8)
        layers: list[nn.Module] = []
        for _ in range(6):
            layers += [nn.Linear(width, width), nn.LeakyReLU(0.2)]
        self.mapped = nn.Sequential(*layers)
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.first, self.first_paint = _Styled(width, width, 3), _Styled(width, 3, 1)
        self.blocks, self.paints = nn.ModuleList(), nn.ModuleList()
        for before, after in pairwise(sizes):
            self.blocks.append(_Styled(before, after, 3, width))
            self.blocks.append(_Styled(after, after, 3, width))
            self.paints.append(_Styled(after, 3, 1, width))

    def forward(self, noise: Tensor) -> Tensor:
        style = self.mapped(functional.normalize(noise, dim=1) * math.sqrt(noise.shape[1]))
        state = self.first(self.start.expand(len(noise), -1, -1, -1), style)
        image = self.first_paint(state, style)
        for first, second, paint in zip(
            self.blocks[::2], self.blocks[1::2], self.paints, strict=True
        ):
            state = second(first(_enlarged(state), style), style)
            image = _enlarged(image) + paint(state, style)
        made: Tensor = image
        return made


def _enlarged(image: Tensor) -> Tensor:
    return functional.interpolate(image, scale_factor=2.0, mode="bilinear", align_corners=False)


class _Styled(nn.Module):
    def __init__(self, before: int, after: int, side: int, given: int = 384) -> None:
        super().__init__()
        self.style = nn.Linear(given, before)
        self.weight = nn.Parameter(torch.randn(after, before, side, side))
        self.bias = nn.Parameter(torch.zeros(after))
        self.gain = 1.0 / math.sqrt(before * side * side)
        self.noise = nn.Parameter(torch.zeros(())) if side > 1 else None

    def forward(self, image: Tensor, given: Tensor) -> Tensor:
        style, weight = self.style(given) + 1.0, self.weight * self.gain
        padding = self.weight.shape[2] // 2
        made = functional.conv2d(image * style[:, :, None, None], weight, padding=padding)
        if self.noise is None:
            return made + self.bias[:, None, None]
        power = style.float().square() @ weight.square().sum((2, 3)).t()
        made = made * torch.rsqrt(power + 1e-8).to(made.dtype)[:, :, None, None]
        grain = torch.randn(len(made), 1, *made.shape[2:], device=made.device, dtype=made.dtype)
        made = made + self.noise * grain + self.bias[:, None, None]
        return functional.leaky_relu(made, 0.2) * math.sqrt(2.0)


class Names(nn.Module):
    """Names in texts: letters, LSTMs in both directions, and how labels follow: a CRF."""

    def __init__(self, words: int = 45_000, width: int = 352, labels: int = 17) -> None:
        super().__init__()
        self.words, self.letters = nn.Embedding(words, 200), nn.Embedding(120, 30)
        self.spelled = nn.Conv1d(30, 56, 3, padding=1)
        self.read = nn.LSTM(256, width, 2, batch_first=True, dropout=0.3, bidirectional=True)
        self.head = nn.Linear(2 * width, labels)
        self.follow = nn.Parameter(torch.randn(labels, labels) * 0.1)

    def forward(self, words: Tensor, letters: Tensor) -> tuple[Tensor, Tensor]:
        each = self.letters(letters).flatten(0, 1).transpose(1, 2)
        spelled = self.spelled(each).amax(2).view(*words.shape, -1)
        state = functional.dropout(torch.cat([self.words(words), spelled], 2), 0.3)
        scores = self.head(functional.dropout(self.read(state)[0], 0.3))
        return scores.float(), self.follow


class Videos(nn.Module):
    """What one watches and likes: bags of embeddings, experts that tasks share, as in MMoE."""

    def __init__(self, items: int = 800_000, width: int = 32, experts: int = 8) -> None:
        super().__init__()
        self.watched = nn.EmbeddingBag(items, width, mode="mean")
        self.searched = nn.EmbeddingBag(200_000, width, mode="sum")
        self.fields = nn.Embedding(1_500_000, width)
        given = 14 * width + 10
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(given, 896), nn.ReLU(), nn.Linear(896, 384), nn.ReLU())
            for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(given, experts, bias=False) for _ in range(3))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))
            for _ in range(3)
        )

    def forward(self, numbers: Tensor, watched: Tensor, searched: Tensor, rows: Tensor) -> Tensor:
        bags = [self.watched(watched), self.searched(searched), self.fields(rows).flatten(1)]
        given = torch.cat([*bags, torch.log1p(numbers)], 1)
        known = torch.stack([expert(given) for expert in self.experts], 1)
        decided = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            shares = gate(given).softmax(1)
            decided.append(tower((shares.unsqueeze(2) * known).sum(1)))
        return torch.cat(decided, 1)


class Citations(nn.Module):
    """Topics of papers: means, extremes and spreads of the neighbours, scaled, as in PNA."""

    def __init__(self, given: int = 100, width: int = 80, layers: int = 4) -> None:
        super().__init__()
        self.start = nn.Linear(given, width)
        self.sent = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.heard = nn.ModuleList(nn.Linear(13 * width, width) for _ in range(layers))
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 47))

    def forward(self, papers: Tensor, ends: Tensor) -> Tensor:
        source, target = ends
        state = self.start(papers)
        places = target.unsqueeze(1).expand(-1, state.shape[1])
        ones = torch.ones(len(target), device=papers.device)
        counts = torch.zeros(len(papers), device=papers.device).index_add(0, target, ones)
        counts = counts.clamp(min=1.0).unsqueeze(1)
        much = torch.log1p(counts) / math.log(13.0)
        for sent, heard, mix, norm in zip(
            self.sent, self.heard, self.mixes, self.norms, strict=True
        ):
            told = sent(torch.cat([state[source], state[target]], 1)).float()
            empty = torch.zeros(state.shape, device=state.device)
            mean = empty.index_add(0, target, told) / counts
            square = empty.index_add(0, target, told * told) / counts
            spread = torch.sqrt(functional.relu(square - mean * mean) + 1e-5)
            most = empty.scatter_reduce(0, places, told, "amax", include_self=False)
            least = empty.scatter_reduce(0, places, told, "amin", include_self=False)
            seen = torch.cat([mean, spread, most, least], 1)
            joined = torch.cat([state, seen, seen * much, seen / much], 1)
            state = state + functional.dropout(functional.relu(norm(mix(heard(joined)))), 0.2)
        topics: Tensor = self.head(state)
        return topics


class Speakers(nn.Module):
    """Who speaks: dilated windows in groups that sum up, attentive pooling, as in ECAPA-TDNN."""

    def __init__(self, speakers: int = 6000, width: int = 768) -> None:
        super().__init__()
        self.start = _voice_layer(80, width, 5)
        self.blocks = nn.ModuleList(_VoiceBlock(width, reach) for reach in (2, 3, 4))
        self.join = nn.Sequential(nn.Conv1d(3 * width, 1536, 1), nn.ReLU())
        self.attention = nn.Sequential(_voice_layer(3 * 1536, 128), nn.Tanh())
        self.weights = nn.Conv1d(128, 1536, 1)
        self.norm, self.narrow = nn.BatchNorm1d(2 * 1536), nn.Linear(2 * 1536, 192)
        self.end, self.known = nn.BatchNorm1d(192), nn.Parameter(torch.randn(speakers, 192))

    def forward(self, spectra: Tensor) -> Tensor:
        state, kept = self.start(spectra), []
        for block in self.blocks:
            state = block(state)
            kept.append(state)
        heard = self.join(torch.cat(kept, 1))
        mean, spread = heard.mean(2, keepdim=True), heard.float().var(2, keepdim=True)
        spread = torch.sqrt(spread.clamp(min=1e-4)).to(heard.dtype)
        around = [heard, mean.expand_as(heard), spread.expand_as(heard)]
        shares = self.weights(self.attention(torch.cat(around, 1))).float().softmax(2)
        mean = (shares * heard).sum(2)
        spread = torch.sqrt(((shares * heard * heard).sum(2) - mean * mean).clamp(min=1e-4))
        voice = self.end(self.narrow(self.norm(torch.cat([mean, spread], 1))))
        cosines = functional.linear(functional.normalize(voice), functional.normalize(self.known))
        return cosines.float()


def _voice_layer(before: int, after: int, side: int = 1, reach: int = 1) -> nn.Module:
    window = nn.Conv1d(before, after, side, padding=reach * (side // 2), dilation=reach)
    return nn.Sequential(window, nn.ReLU(), nn.BatchNorm1d(after))


class _VoiceBlock(nn.Module):
    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.before, self.after = _voice_layer(width, width), _voice_layer(width, width)
        part = width // 8
        self.windows = nn.ModuleList(_voice_layer(part, part, 3, reach) for _ in range(7))
        self.squeeze, self.excite = nn.Conv1d(width, 128, 1), nn.Conv1d(128, width, 1)

    def forward(self, sound: Tensor) -> Tensor:
        first, *parts = self.before(sound).chunk(8, 1)
        made: list[Tensor] = [first]
        for place, (window, part) in enumerate(zip(self.windows, parts, strict=True)):
            made.append(window(part + made[-1] if place else part))
        state = self.after(torch.cat(made, 1))
        gate = self.excite(functional.relu(self.squeeze(state.mean(2, keepdim=True))))
        heard: Tensor = sound + state * torch.sigmoid(gate)
        return heard


class Restorer(nn.Module):
    """Clean photos: gates in place of activations, pixel shuffles up, as in NAFNet."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.start, self.end = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.encoders, self.downs = nn.ModuleList(), nn.ModuleList()
        self.decoders, self.ups = nn.ModuleList(), nn.ModuleList()
        size = width
        for count in (2, 2, 4):
            self.encoders.append(nn.Sequential(*(_Gated(size) for _ in range(count))))
            self.downs.append(nn.Conv2d(size, 2 * size, 2, 2))
            size *= 2
        self.middle = nn.Sequential(*(_Gated(size) for _ in range(6)))
        for _ in range(3):
            wide = nn.Conv2d(size, 2 * size, 1, bias=False)
            self.ups.append(nn.Sequential(wide, nn.PixelShuffle(2)))
            size //= 2
            self.decoders.append(nn.Sequential(_Gated(size), _Gated(size)))

    def forward(self, photos: Tensor) -> Tensor:
        state, kept = self.start(photos), []
        for encoder, down in zip(self.encoders, self.downs, strict=True):
            state = encoder(state)
            kept.append(state)
            state = down(state)
        state = self.middle(state)
        for up, decoder in zip(self.ups, self.decoders, strict=True):
            state = decoder(up(state) + kept.pop())
        clean: Tensor = photos + self.end(state)
        return clean


class _Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 2 * width
        self.norms = nn.ModuleList(_ChannelNorm(width) for _ in range(2))
        self.wide, self.narrow = nn.Conv2d(width, wide, 1), nn.Conv2d(width, width, 1)
        self.alone = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.again, self.out = nn.Conv2d(width, wide, 1), nn.Conv2d(width, width, 1)
        self.scales = nn.Parameter(torch.zeros(2, width, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        left, right = self.alone(self.wide(self.norms[0](image))).chunk(2, 1)
        gated = left * right
        image = image + self.narrow(gated * self.weigh(gated)) * self.scales[0]
        left, right = self.again(self.norms[1](image)).chunk(2, 1)
        made: Tensor = image + self.out(left * right) * self.scales[1]
        return made


class _ChannelNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, 1, 1))
        self.bias = nn.Parameter(torch.zeros(width, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        away = image - image.mean(1, keepdim=True)
        spread = away.square().mean(1, keepdim=True)
        return away * torch.rsqrt(spread + 1e-6) * self.weight + self.bias


class LatentDenoiser(nn.Module):
    """Noise in patches of latent images, whose layers a time and a class shift, as in DiT."""

    def __init__(self, width: int = 640, layers: int = 10, kinds: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Buffer(torch.randn(1, 256, width) * 0.02)
        self.waves = nn.Buffer(torch.logspace(0.0, -4.0, 128))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.kinds = nn.Embedding(kinds + 1, width)
        self.layers = nn.ModuleList(_Shifted(width, 10) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.shift, self.head = nn.Linear(width, 2 * width), nn.Linear(width, 16)

    def forward(self, noisy: Tensor, times: Tensor, kinds: Tensor) -> Tensor:
        state = self.patches(noisy).flatten(2).transpose(1, 2) + self.places
        angles = 1000.0 * times.unsqueeze(1) * self.waves
        given = self.time(torch.cat([angles.cos(), angles.sin()], 1)) + self.kinds(kinds)
        given = functional.silu(given)
        for layer in self.layers:
            state = layer(state, given)
        shift, scale = self.shift(given).unsqueeze(1).chunk(2, 2)
        patches = self.head(self.norm(state) * (1.0 + scale) + shift)
        return functional.pixel_shuffle(patches.transpose(1, 2).unflatten(2, (16, 16)), 2)


class _Shifted(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.shifts = nn.Linear(width, 6 * width)

    def forward(self, state: Tensor, given: Tensor) -> Tensor:
        shifts = self.shifts(given).unsqueeze(1).chunk(6, 2)
        seen = self.norms[0](state) * (1.0 + shifts[1]) + shifts[0]
        parts = self.qkv(seen).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(*parts.unbind(0))
        state = state + shifts[2] * self.out(heard.transpose(1, 2).flatten(2))
        seen = self.norms[1](state) * (1.0 + shifts[4]) + shifts[3]
        made: Tensor = state + shifts[5] * self.wide(seen)
        return made


class Shapes(nn.Module):
    """Kinds of things from their points, which weigh 16 neighbours, as in Point Transformer."""

    def __init__(self, kinds: int = 40, width: int = 48) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width))
        sizes, self.counts = [width * size for size in (1, 2, 4, 8)], (1, 2, 2, 1)
        self.downs = nn.ModuleList(nn.Linear(size // 2 + 3, size) for size in sizes[1:])
        counted = zip(sizes, self.counts, strict=True)
        self.layers = nn.ModuleList(
            _Neighbours(size) for size, count in counted for _ in range(count)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:])
        self.head = nn.Sequential(
            nn.Linear(8 * width, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, kinds)
        )

    def forward(self, points: Tensor, normals: Tensor) -> Tensor:
        state = self.start(torch.cat([points, normals], 2))
        layers = iter(self.layers)
        for level, count in enumerate(self.counts):
            if level:
                chosen = points[:, ::4]
                near = _nearest(chosen, points, 16)
                apart = _gathered(points, near) - chosen.unsqueeze(2)
                joined = self.downs[level - 1](torch.cat([_gathered(state, near), apart], 3))
                normed = self.norms[level - 1](joined.flatten(0, 2)).view(joined.shape)
                state, points = functional.relu(normed).amax(2), chosen
            near = _nearest(points, points, 16)
            apart = points.unsqueeze(2) - _gathered(points, near)
            for _ in range(count):
                state = next(layers)(state, near, apart)
        seen: Tensor = self.head(state.mean(1))
        return seen


def _nearest(chosen: Tensor, points: Tensor, count: int) -> Tensor:
    return torch.cdist(chosen, points).topk(count, 2, largest=False).indices


def _gathered(state: Tensor, near: Tensor) -> Tensor:
    places = near.flatten(1).unsqueeze(2).expand(-1, -1, state.shape[2])
    return state.gather(1, places).view(*near.shape, -1)


class _Neighbours(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, width)
        self.parts = nn.Linear(width, 3 * width, bias=False)
        self.apart = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, state: Tensor, near: Tensor, apart: Tensor) -> Tensor:
        query, key, value = self.parts(self.before(state)).chunk(3, 2)
        place = self.apart(apart)
        shares = self.weigh(query.unsqueeze(2) - _gathered(key, near) + place).softmax(2)
        heard = (shares * (_gathered(value, near) + place)).sum(2)
        made: Tensor = state + self.after(heard)
        return made


class Weather(nn.Module):
    """The next days of many series from patches of the last ones, as in PatchTST."""

    def __init__(self, width: int = 160, layers: int = 4, patches: int = 64) -> None:
        super().__init__()
        self.start = nn.Linear(16, width)
        self.places = nn.Parameter(torch.randn(patches, width) * 0.02)
        self.layers = nn.ModuleList(_PatchLayer(width, 10) for _ in range(layers))
        self.scale, self.shift = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(width * patches, 96))

    def forward(self, series: Tensor) -> Tensor:
        mean, spread = series.mean(1, keepdim=True), series.std(1, keepdim=True) + 1e-5
        scaled = (series - mean) / spread * self.scale + self.shift
        padded = functional.pad(scaled.transpose(1, 2), (0, 8), "replicate")
        state = self.start(padded.unfold(2, 16, 8)).flatten(0, 1) + self.places
        scores: Tensor | None = None
        for layer in self.layers:
            state, scores = layer(state, scores)
        made = self.head(state.flatten(1)).unflatten(0, series.shape[::2]).transpose(1, 2)
        forecast: Tensor = (made - self.shift) / self.scale * spread + mean
        return forecast


class _PatchLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.gain = heads, math.sqrt(heads / width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * width, width)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))

    def forward(self, state: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = self.qkv(state).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(2, 3) * self.gain
        if before is not None:
            scores = scores + before
        heard = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
        state = self._normed(0, state + functional.dropout(self.out(heard), 0.2))
        return self._normed(1, state + functional.dropout(self.wide(state), 0.2)), scores

    def _normed(self, place: int, state: Tensor) -> Tensor:
        normed: Tensor = self.norms[place](state.transpose(1, 2))
        return normed.transpose(1, 2)


class Proteins(nn.Module):
    """How far apart a protein's places are: triangles of pairs, as in AlphaFold's Evoformer."""

    def __init__(self, width: int = 128, pair: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.start, self.places = nn.Embedding(23, width), nn.Embedding(65, pair)
        self.left, self.right = nn.Embedding(23, pair), nn.Embedding(23, pair)
        self.layers = nn.ModuleList(_FoldLayer(width, pair) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(pair), nn.Linear(pair, 64)

    def forward(self, relatives: Tensor) -> Tensor:
        aligned, own = self.start(relatives), relatives[:, 0]
        order = torch.arange(own.shape[1], device=own.device)
        apart = (order[:, None] - order).clamp(-32, 32) + 32
        pairs = self.left(own).unsqueeze(2) + self.right(own).unsqueeze(1) + self.places(apart)
        for layer in self.layers:
            aligned, pairs = layer(aligned, pairs)
        logits = self.head(self.norm(pairs))
        distances: Tensor = logits + logits.transpose(1, 2)
        return distances.permute(0, 3, 1, 2)


class _FoldLayer(nn.Module):
    def __init__(self, width: int, pair: int) -> None:
        super().__init__()
        self.bias = nn.Sequential(nn.LayerNorm(pair), nn.Linear(pair, 8, bias=False))
        self.along, self.across = _FoldAttention(width, 8), _FoldAttention(width, 8)
        self.wide = _fold_transition(width)
        self.norm, self.parts = nn.LayerNorm(width), nn.Linear(width, 2 * 16)
        self.product = nn.Linear(16 * 16, pair)
        self.triangles = nn.ModuleList(_Triangle(pair, outgoing) for outgoing in (True, False))
        self.attentions = nn.ModuleList(_FoldAttention(pair, 4) for _ in range(2))
        self.biases = nn.ModuleList(nn.Linear(pair, 4, bias=False) for _ in range(2))
        self.pair_wide = _fold_transition(pair)

    def forward(self, aligned: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        bias = self.bias(pairs).permute(0, 3, 1, 2).unsqueeze(1)
        aligned = aligned + self.along(aligned, bias)
        aligned = aligned + self.across(aligned.transpose(1, 2), None).transpose(1, 2)
        aligned = aligned + self.wide(aligned)
        left, right = self.parts(self.norm(aligned)).chunk(2, 3)
        product = torch.einsum("bsic,bsjd->bijcd", left, right).flatten(3)
        pairs = pairs + self.product(product / aligned.shape[1])
        for triangle in self.triangles:
            pairs = pairs + triangle(pairs)
        for turn, (attention, lift) in enumerate(zip(self.attentions, self.biases, strict=True)):
            turned = pairs.transpose(1, 2) if turn else pairs
            seen = attention(turned, lift(turned).permute(0, 3, 1, 2).unsqueeze(1))
            pairs = pairs + (seen.transpose(1, 2) if turn else seen)
        return aligned, pairs + self.pair_wide(pairs)


def _fold_transition(width: int) -> nn.Module:
    first, second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    return nn.Sequential(nn.LayerNorm(width), first, nn.ReLU(), second)


class _FoldAttention(nn.Module):
    """Attention within each row, with a gate and, of pairs, a bias that all rows share."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.gain = heads, math.sqrt(heads / width)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        normed = self.norm(rows)
        parts = self.qkv(normed).unflatten(3, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        query, key, value = parts.unbind(0)
        scores = (query * self.gain) @ key.transpose(3, 4)
        if bias is not None:
            scores = scores + bias
        heard = (scores.softmax(4) @ value).transpose(2, 3).flatten(3)
        made: Tensor = self.out(torch.sigmoid(self.gate(normed)) * heard)
        return made


class _Triangle(nn.Module):
    def __init__(self, pair: int, outgoing: bool) -> None:
        super().__init__()
        self.sides = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm, self.end = nn.LayerNorm(pair), nn.LayerNorm(pair)
        self.parts, self.gates = nn.Linear(pair, 2 * pair), nn.Linear(pair, 2 * pair)
        self.gate, self.out = nn.Linear(pair, pair), nn.Linear(pair, pair)

    def forward(self, pairs: Tensor) -> Tensor:
        normed = self.norm(pairs)
        parts = torch.sigmoid(self.gates(normed)) * self.parts(normed)
        joined = torch.einsum(self.sides, *parts.chunk(2, 3))
        made: Tensor = torch.sigmoid(self.gate(normed)) * self.out(self.end(joined))
        return made


def _scans(batch: int) -> Made:
    labels = torch.randint(14, (batch, 96, 96, 96))
    return Scans(), torch.randn(batch, 1, 96, 96, 96), labels, class_loss


def _faces(batch: int) -> Made:
    return Faces(), torch.randn(batch, 384), torch.randn(batch, 3, 128, 128), pixel_loss


def _names(batch: int) -> Made:
    """Sentences of 40 words of twelve letters."""
    inputs = (random_words(batch, 40, 45_000), torch.randint(120, (batch, 40, 12)))
    return Names(), inputs, random_words(batch, 40, 17), _names_loss


def _names_loss(made: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    """How much less likely the wanted labels are than all, by sums over all ways to a word."""
    scores, follow = made
    chosen = scores.gather(2, wanted.unsqueeze(2)).sum((1, 2))
    chosen = chosen + follow[wanted[:, :-1], wanted[:, 1:]].sum(1)
    reached = scores[:, 0]
    for place in range(1, scores.shape[1]):
        reached = (reached.unsqueeze(2) + follow).logsumexp(1) + scores[:, place]
    return (reached.logsumexp(1) - chosen).mean()


def _videos(batch: int) -> Made:
    inputs = (
        torch.rand(batch, 10),
        torch.randint(800_000, (batch, 40)),
        torch.randint(200_000, (batch, 12)),
        torch.randint(1_500_000, (batch, 12)),
    )
    return Videos(), inputs, torch.rand(batch, 3), click_loss


def _citations(batch: int) -> Made:
    """``batch`` thousand papers that cite twelve others each."""
    papers = 1000 * batch
    inputs = (torch.randn(papers, 100), torch.randint(papers, (2, 12 * papers)))
    return Citations(), inputs, torch.randint(47, (papers,)), class_loss


def _speakers(batch: int) -> Made:
    """Three seconds of speech."""
    spectra = torch.randn(batch, 80, 300)
    return Speakers(), spectra, torch.randint(6000, (batch,)), _speakers_loss


def _speakers_loss(cosines: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy of angles, where the wanted one counts 0.2 more."""
    sines = torch.sqrt((1.0 - cosines.square()).clamp(1e-6, 1.0))
    moved = cosines * math.cos(0.2) - sines * math.sin(0.2)
    moved = torch.where(cosines > -math.cos(0.2), moved, cosines - 0.2 * math.sin(0.2))
    ours = torch.arange(cosines.shape[1], device=wanted.device) == wanted.unsqueeze(1)
    return class_loss(30.0 * torch.where(ours, moved, cosines), wanted)


def _restorer(batch: int) -> Made:
    photos = torch.rand(2, batch, 3, 192, 192)
    return Restorer(), photos[0], photos[1], functional.l1_loss


def _latents(batch: int) -> Made:
    noisy, noise = torch.randn(2, batch, 4, 32, 32)
    inputs = (noisy, torch.rand(batch), torch.randint(1001, (batch,)))
    return LatentDenoiser(), inputs, noise, pixel_loss


def _shapes(batch: int) -> Made:
    inputs = (torch.rand(batch, 1024, 3), torch.randn(batch, 1024, 3))
    return Shapes(), inputs, torch.randint(40, (batch,)), class_loss


def _weather(batch: int) -> Made:
    """The last 512 hours of 32 series, and the next 96."""
    return Weather(), torch.randn(batch, 512, 32), torch.randn(batch, 96, 32), pixel_loss


def _proteins(batch: int) -> Made:
    """Proteins of 144 places with 24 relatives, and which of 64 distances each pair has."""
    relatives = torch.randint(23, (batch, 24, 144))
    return Proteins(), relatives, torch.randint(64, (batch, 144, 144)), class_loss


def _mobile(batch: int) -> Made:
    """torchvision's LR-ASPP: classes of pixels by a MobileNet V3."""
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=19
    )
    images, labels = torch.randn(batch, 3, 320, 320), torch.randint(19, (batch, 320, 320))
    return model, images, labels, lambda made, wanted: class_loss(made["out"], wanted)


def _pairs(batch: int) -> Made:
    """CLIP: images and their captions, each compared with all others in the batch."""
    import transformers as library

    text: dict[str, Any] = {
        "vocab_size": 30_000,
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "max_position_embeddings": 48,
        "bos_token_id": 0,
        "eos_token_id": 29_999,
    }
    vision: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "image_size": 160,
        "patch_size": 16,
    }
    config = library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=320)
    words = torch.cat([random_words(batch, 47, 29_999), torch.full((batch, 1), 29_999)], 1)
    inputs = {"input_ids": words, "pixel_values": torch.randn(batch, 3, 160, 160)}
    return library.CLIPModel(config), inputs, torch.arange(batch), _pairs_loss


def _pairs_loss(made: Any, wanted: Tensor) -> Tensor:
    logits = made.logits_per_image
    return 0.5 * (class_loss(logits, wanted) + class_loss(logits.t(), wanted))


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    if name == "longt5":  # each word attends to 127 around it
        words = random_words(batch, 1024, 28_000)
        model: nn.Module = library.LongT5ForConditionalGeneration(
            library.LongT5Config(
                vocab_size=28_000,
                d_model=576,
                d_ff=1280,
                num_layers=5,
                num_decoder_layers=5,
                num_heads=9,
                local_radius=63,
                feed_forward_proj="gated-gelu",
                decoder_start_token_id=0,
                use_cache=False,
            )
        )
        inputs: dict[str, Any] = {"input_ids": words, "labels": random_words(batch, 192, 28_000)}
    elif name == "olmo2":  # with four documents behind each other, which do not see each other
        words, order = random_words(batch, 1024, 30_000), torch.arange(1024)
        seen = (order[:, None] >= order) & (order[:, None] // 256 == order // 256)
        model = library.Olmo2ForCausalLM(
            library.Olmo2Config(
                vocab_size=30_000,
                hidden_size=768,
                intermediate_size=2304,
                num_hidden_layers=7,
                num_attention_heads=12,
                num_key_value_heads=4,
                eos_token_id=2,
                use_cache=False,
            )
        )
        mask = seen.expand(batch, 1, -1, -1)
        inputs = {"input_ids": words, "attention_mask": mask, "labels": words.clone()}
    else:
        model = library.FocalNetForImageClassification(
            library.FocalNetConfig(focal_levels=(3, 3, 3, 3), num_labels=300)
        )
        labels = torch.randint(300, (batch,))
        inputs = {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": labels}
    return model, inputs, None, None


NETWORKS: Networks = {
    "scans": (_scans, (10,), "adamw"),
    "faces": (_faces, (192,), "adam"),
    "names": (_names, (4096,), "sgd"),
    "videos": (_videos, (131_072,), "adam"),
    "citations": (_citations, (128,), "adam"),
    "speakers": (_speakers, (384,), "adam"),
    "restorer": (_restorer, (24,), "adamw"),
    "latent-denoiser": (_latents, (96,), "adamw"),
    "shapes": (_shapes, (256,), "sgd"),
    "weather": (_weather, (160,), "adam"),
    "proteins": (_proteins, (10,), "adam"),
    "mobile-segmenter": (_mobile, (128,), "sgd"),
    "image-text-pairs": (_pairs, (320,), "adamw"),
    "longt5": (lambda batch: _transformers("longt5", batch), (24,), "adamw"),
    "olmo2": (lambda batch: _transformers("olmo2", batch), (12,), "adamw"),
    "focalnet": (lambda batch: _transformers("focalnet", batch), (96,), "adamw"),
}
