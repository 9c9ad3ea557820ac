"""Twelve more networks to predict: `benchmarks/outside_zoo.py --networks last`.

Of the same kinds as those in the other files, in other architectures and sizes. They were measured
before they were first predicted, and nothing about them was chosen by a prediction.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from user_networks import Made, Networks, class_loss, click_loss, pixel_loss, random_words


class SpeechCleaner(nn.Module):
    """Clean speech by a mask over its spectrum: convolutions around GRUs, as in GCRN."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (2, 28, 56, 112, 160, 176)
        bands = (161, 80, 39, 19, 9, 4)
        self.down, self.down_norms = nn.ModuleList(), nn.ModuleList()
        self.up, self.up_norms = nn.ModuleList(), nn.ModuleList()
        for (before, after), (many, few) in zip(pairwise(sizes), pairwise(bands), strict=True):
            self.down.append(nn.Conv2d(before, after, (2, 3), stride=(1, 2)))
            self.down_norms.append(nn.BatchNorm2d(after))
            missing = (0, many - 2 * few - 1)
            grow = nn.ConvTranspose2d(2 * after, before, (2, 3), (1, 2), output_padding=missing)
            self.up.insert(0, grow)
            self.up_norms.insert(0, nn.BatchNorm2d(before) if before > 2 else nn.Identity())
        width = sizes[-1] * bands[-1]
        self.recurrent = nn.GRU(width, width, 2, batch_first=True)
        self.mix = nn.Linear(width, width)

    def forward(self, spectrum: Tensor) -> Tensor:
        state, kept = spectrum, []
        for window, norm in zip(self.down, self.down_norms, strict=True):
            state = functional.elu(norm(window(functional.pad(state, (0, 0, 1, 0)))))
            kept.append(state)
        frames = state.transpose(1, 2)
        heard = self.mix(self.recurrent(frames.flatten(2))[0]).view(frames.shape)
        state = heard.transpose(1, 2)
        for grow, norm in zip(self.up, self.up_norms, strict=True):
            state = norm(grow(torch.cat([state, kept.pop()], 1))[:, :, :-1])
            state = functional.elu(state) if kept else torch.tanh(state)
        (real, imaginary), (left, right) = spectrum.unbind(1), state.unbind(1)
        cleaned = (real * left - imaginary * right, real * right + imaginary * left)
        return torch.stack(cleaned, 1)


class Interpreter(nn.Module):
    """Sentences to sentences: LSTMs that read, LSTMs that write and look back, as by Luong."""

    def __init__(self, words: int = 18_000, width: int = 416, hidden: int = 704) -> None:
        super().__init__()
        self.read = nn.Embedding(words, width, padding_idx=0)
        self.written = nn.Embedding(words, width, padding_idx=0)
        self.encode = nn.LSTM(
            width, hidden // 2, 2, batch_first=True, dropout=0.2, bidirectional=True
        )
        self.bridges = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.decode = nn.LSTM(width, hidden, 2, batch_first=True, dropout=0.2)
        self.asked = nn.Linear(hidden, hidden, bias=False)
        self.seen, self.own = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, words)

    def forward(self, source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        memory, ends = self.encode(self.read(source))
        starts = []
        for bridge, end in zip(self.bridges, ends, strict=True):
            joined = end.view(2, 2, len(source), -1).transpose(1, 2).flatten(2)
            starts.append(torch.tanh(bridge(joined)).float())
        decoded = self.decode(self.written(target), (starts[0], starts[1]))[0]
        scores = torch.bmm(self.asked(decoded), memory.transpose(1, 2)).float()
        weights = scores.masked_fill(hidden.unsqueeze(1), -1e9).softmax(2)
        context = torch.bmm(weights, memory)
        state = functional.dropout(torch.tanh(self.seen(context) + self.own(decoded)), 0.2)
        logits: Tensor = self.head(state)
        return logits.flatten(0, 1)


class Stereo(nn.Module):
    """Shifts between two views: dilated features, a volume of their pairs, as in PSMNet."""

    def __init__(self, width: int = 24, shifts: int = 20) -> None:
        super().__init__()
        self.shifts = shifts
        sizes = ((3, 32, 2, 1), (32, 48, 2, 1), (48, 64, 1, 1), (64, 64, 1, 2), (64, 96, 1, 4))
        layers: list[nn.Module] = []
        for before, after, stride, reach in sizes:
            layers += _view_layer(before, after, stride, reach)
            layers += _view_layer(after, after, 1, reach)
        self.views = nn.Sequential(*layers)
        self.pools = nn.ModuleList(nn.Conv2d(96, 32, 1) for _ in range(3))
        self.join = nn.Sequential(*_view_layer(192, 64, 1, 1), nn.Conv2d(64, width, 1))
        self.start = nn.Sequential(
            *_shift_layer(2 * width, width, 1),
            nn.ReLU(inplace=True),
            *_shift_layer(width, width, 1),
        )
        self.glasses = nn.ModuleList(_Hourglass(width) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv3d(width, 1, 3, padding=1) for _ in self.glasses)
        self.steps = nn.Buffer(torch.arange(4.0 * shifts).view(1, -1, 1, 1))

    def _features(self, image: Tensor) -> Tensor:
        seen = self.views(image)
        parts = [seen]
        for level, pool in enumerate(self.pools):
            own = pool(functional.avg_pool2d(seen, 2 ** (level + 2), ceil_mode=True))
            parts.append(functional.interpolate(own, seen.shape[2:], mode="bilinear"))
        joined: Tensor = self.join(torch.cat(parts, 1))
        return joined

    def forward(self, left: Tensor, right: Tensor) -> list[Tensor]:
        ours, theirs = self._features(left), self._features(right)
        pairs = []
        for shift in range(self.shifts):
            moved = functional.pad(theirs[..., : theirs.shape[3] - shift], (shift, 0))
            pairs.append(torch.cat([ours, moved], 1))
        state, found = self.start(torch.stack(pairs, 2)), []
        for glass, head in zip(self.glasses, self.heads, strict=True):
            state = glass(functional.relu(state))
            costs = functional.interpolate(head(state), scale_factor=4.0, mode="trilinear")
            likely = costs[:, 0].softmax(1, dtype=torch.float32)
            found.append((likely * self.steps).sum(1))
        return found


def _view_layer(before: int, after: int, stride: int, reach: int) -> tuple[nn.Module, ...]:
    window = nn.Conv2d(before, after, 3, stride, reach, reach, bias=False)
    return window, nn.BatchNorm2d(after), nn.ReLU(inplace=True)


def _shift_layer(before: int, after: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after)


class _Hourglass(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 2 * width
        self.first = nn.Sequential(*_shift_layer(width, wide, 2), nn.ReLU(inplace=True))
        self.second = nn.Sequential(*_shift_layer(wide, wide, 1))
        self.third = nn.Sequential(*_shift_layer(wide, wide, 2), nn.ReLU(inplace=True))
        self.back = nn.Sequential(
            nn.ConvTranspose3d(wide, wide, 3, 2, 1, output_padding=1, bias=False),
            nn.BatchNorm3d(wide),
        )
        self.last = nn.Sequential(
            nn.ConvTranspose3d(wide, width, 3, 2, 1, output_padding=1, bias=False),
            nn.BatchNorm3d(width),
        )

    def forward(self, volume: Tensor) -> Tensor:
        half = self.second(self.first(volume))
        state = functional.relu(self.back(self.third(functional.relu(half))) + half)
        made: Tensor = self.last(state) + volume
        return made


class Interests(nn.Module):
    """Clicks from what one read before: a GRU, then attention of the offer, as in DIEN."""

    def __init__(self, items: int = 700_000, kinds: int = 1500, hidden: int = 72) -> None:
        super().__init__()
        self.items, self.kinds = nn.Embedding(items, 40), nn.Embedding(kinds, 24)
        self.recurrent = nn.GRU(64, hidden, batch_first=True)
        self.states, self.offer = nn.Linear(hidden, hidden), nn.Linear(64, hidden)
        self.scores = nn.Sequential(
            nn.Linear(4 * hidden, 80),
            nn.Sigmoid(),
            nn.Linear(80, 40),
            nn.Sigmoid(),
            nn.Linear(40, 1),
        )
        self.top = nn.Sequential(
            nn.Linear(3 * hidden, 240),
            nn.BatchNorm1d(240),
            nn.PReLU(),
            nn.Linear(240, 96),
            nn.BatchNorm1d(96),
            nn.PReLU(),
            nn.Linear(96, 1),
        )

    def forward(
        self, items: Tensor, kinds: Tensor, offer: Tensor, offer_kind: Tensor, lengths: Tensor
    ) -> Tensor:
        history = torch.cat([self.items(items), self.kinds(kinds)], 2)
        wanted = self.offer(torch.cat([self.items(offer), self.kinds(offer_kind)], 1))
        states = self.states(self.recurrent(history)[0])
        asked = wanted.unsqueeze(1).expand(states.shape)
        pairs = torch.cat([states, asked, states - asked, states * asked], 2)
        places = torch.arange(items.shape[1], device=items.device)
        hidden = places.unsqueeze(0) >= lengths.unsqueeze(1)
        scores = self.scores(pairs)[..., 0].float().masked_fill(hidden, -1e9)
        interest = torch.bmm(scores.softmax(1).unsqueeze(1), states)[:, 0]
        ends = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        last = states.gather(1, ends)[:, 0]
        clicked: Tensor = self.top(torch.cat([wanted, interest, last], 1))
        return clicked


class Crystals(nn.Module):
    """Energies of crystals: gates along edges, batch norm, sums at atoms, as in CGCNN."""

    def __init__(self, width: int = 112, waves: int = 40, layers: int = 4) -> None:
        super().__init__()
        self.atoms = nn.Embedding(96, width)
        self.centres = nn.Buffer(torch.linspace(0.0, 8.0, waves))
        self.gates = nn.ModuleList(
            nn.Linear(2 * width + waves, 2 * width, bias=False) for _ in range(layers)
        )
        self.edge_norms = nn.ModuleList(nn.BatchNorm1d(2 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, 144), nn.Softplus(), nn.Linear(144, 1))

    def forward(self, atoms: Tensor, edges: Tensor, distances: Tensor, owners: Tensor) -> Tensor:
        state = self.atoms(atoms)
        given = torch.exp(-((distances.unsqueeze(1) - self.centres) ** 2) / 0.04)
        targets = edges[1].unsqueeze(1).expand(-1, state.shape[1])
        for gate, edge_norm, norm in zip(self.gates, self.edge_norms, self.norms, strict=True):
            pairs = torch.cat([state[edges[0]], state[edges[1]], given], 1)
            share, sent = edge_norm(gate(pairs)).chunk(2, 1)
            sent = torch.sigmoid(share) * functional.softplus(sent)
            heard = sent.new_zeros(state.shape).scatter_add(0, targets, sent)
            state = functional.softplus(state + norm(heard))
        crystals = len(atoms) // 36
        pooled = state.new_zeros(crystals, state.shape[1]).index_add(0, owners, state) / 36.0
        found: Tensor = self.head(functional.softplus(pooled))
        return found[:, 0]


class Centres(nn.Module):
    """Objects as points: a Darknet, transposed convolutions, sizes at centres, as in CenterNet."""

    def __init__(self, width: int = 40, kinds: int = 24) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(5)]
        layers: list[nn.Module] = [*_dark_layer(3, width, 3, 1)]
        for (before, after), count in zip(pairwise(sizes), (1, 2, 3, 2), strict=True):
            layers += _dark_layer(before, after, 3, 2)
            layers += [_DarkBlock(after) for _ in range(count)]
        self.body = nn.Sequential(*layers)
        grown: list[nn.Module] = []
        for before, after in pairwise((sizes[-1], 208, 112)):
            grown += [
                nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        self.up = nn.Sequential(*grown)
        self.kinds, self.sizes = _point_head(112, kinds), _point_head(112, 4)

    def forward(self, images: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.up(self.body(images))
        sizes = self.sizes(seen).flatten(2)
        picked = places.unsqueeze(1).expand(-1, sizes.shape[1], -1)
        return self.kinds(seen), sizes.gather(2, picked)


def _dark_layer(before: int, after: int, side: int, stride: int) -> tuple[nn.Module, ...]:
    window = nn.Conv2d(before, after, side, stride, side // 2, bias=False)
    return window, nn.BatchNorm2d(after), nn.LeakyReLU(0.1, inplace=True)


class _DarkBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(*_dark_layer(width, half, 1, 1), *_dark_layer(half, width, 3, 1))

    def forward(self, image: Tensor) -> Tensor:
        grown: Tensor = image + self.body(image)
        return grown


def _point_head(width: int, made: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, 72, 3, padding=1), nn.ReLU(), nn.Conv2d(72, made, 1))


class Music(nn.Module):
    """Notes by attention with skewed relative places, written out, as in Music Transformer."""

    def __init__(
        self, notes: int = 388, width: int = 448, heads: int = 7, length: int = 1792
    ) -> None:
        super().__init__()
        self.notes = nn.Embedding(notes, width)
        self.hidden = nn.Buffer(torch.ones(length, length, dtype=torch.bool).triu(1))
        self.layers = nn.ModuleList(_MusicLayer(width, heads, length) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, notes)

    def forward(self, notes: Tensor) -> Tensor:
        state = self.notes(notes) * self.notes.embedding_dim**0.5
        for layer in self.layers:
            state = layer(state, self.hidden)
        logits: Tensor = self.head(self.norm(state))
        return logits.flatten(0, 1)


class _MusicLayer(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.far = nn.Parameter(torch.randn(heads, width // heads, length) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 3 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3 * width, width)
        )

    def forward(self, state: Tensor, hidden: Tensor) -> Tensor:
        batch, length, width = state.shape
        parts = self.parts(self.norms[0](state)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        query = query * (width // self.heads) ** -0.5
        places = functional.pad(query @ self.far, (1, 0))
        skewed = places.view(batch, self.heads, length + 1, length)[:, :, 1:]
        scores = (query @ key.transpose(2, 3) + skewed).masked_fill(hidden, -1e4)
        seen = functional.dropout(scores.softmax(3), 0.1) @ value
        state = state + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        grown: Tensor = state + self.wide(self.norms[1](state))
        return grown


class Cells(nn.Module):
    """Counts of a cell's genes from a short code, as in scVI: wide layer norms and softmax."""

    def __init__(self, genes: int = 11_000, width: int = 1408, code: int = 48) -> None:
        super().__init__()
        self.first = nn.LayerNorm(genes)
        self.read = nn.Sequential(*_gene_layer(genes, width), *_gene_layer(width, width))
        self.code = nn.Linear(width, 2 * code)
        self.batches = nn.Embedding(64, 16)
        self.write = nn.Sequential(*_gene_layer(code + 16, width), *_gene_layer(width, width))
        self.shares, self.spread = nn.Linear(width, genes), nn.Parameter(torch.zeros(genes))

    def forward(self, counts: Tensor, batches: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        state = self.read(self.first(torch.log1p(counts)))
        mean, log_spread = self.code(state).float().chunk(2, 1)
        code = mean + noise * torch.exp(0.5 * log_spread)
        shares = self.shares(self.write(torch.cat([code, self.batches(batches)], 1)))
        rates = shares.softmax(1, dtype=torch.float32) * counts.sum(1, keepdim=True)
        return rates, self.spread.exp(), mean, log_spread


def _gene_layer(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU(), nn.Dropout(0.1)


class Quakes(nn.Module):
    """Arrivals of waves in seismograms: a U-Net over time with dilated middle, as in PhaseNet."""

    def __init__(self) -> None:
        super().__init__()
        sizes, strides = (24, 48, 96, 144), (2, 4, 4)
        self.start = nn.Sequential(nn.Conv1d(3, sizes[0], 11, padding=5), *_quake_end(sizes[0]))
        self.down, self.up, self.mix = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for (before, after), stride in zip(pairwise(sizes), strides, strict=True):
            self.down.append(
                nn.Sequential(
                    nn.Conv1d(before, after, 11, stride, padding=5),
                    *_quake_end(after),
                    nn.Conv1d(after, after, 11, padding=5),
                    *_quake_end(after),
                )
            )
            side = stride + 4
            self.up.insert(0, nn.ConvTranspose1d(after, before, side, stride, padding=2))
            self.mix.insert(
                0, nn.Sequential(nn.Conv1d(2 * before, before, 11, padding=5), *_quake_end(before))
            )
        self.middle = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(144, 144, 5, padding=2 * reach, dilation=reach), *_quake_end(144)
            )
            for reach in (1, 2, 4, 8, 16)
        )
        self.head = nn.Conv1d(sizes[0], 3, 1)

    def forward(self, signals: Tensor) -> Tensor:
        kept = [self.start(signals)]
        for block in self.down:
            kept.append(block(kept[-1]))
        state = kept.pop()
        for block in self.middle:
            state = state + block(state)
        for grow, mix in zip(self.up, self.mix, strict=True):
            state = mix(torch.cat([grow(state), kept.pop()], 1))
        found: Tensor = self.head(state)
        return found


def _quake_end(width: int) -> tuple[nn.Module, ...]:
    return nn.GroupNorm(8, width), nn.SiLU()


def _cleaner(batch: int) -> Made:
    spectra = torch.randn(2, batch, 2, 256, 161)
    return SpeechCleaner(), spectra[0], spectra[1], pixel_loss


def _interpreter(batch: int) -> Made:
    """Sentences of up to 44 words, into ones of 36."""
    target = random_words(batch, 36, 18_000)
    hidden = torch.arange(44) >= torch.randint(12, 45, (batch, 1))
    inputs = (random_words(batch, 44, 18_000), target, hidden)
    return Interpreter(), inputs, random_words(batch, 36, 18_000).flatten(), class_loss


def _stereo(batch: int) -> Made:
    views = torch.randn(2, batch, 3, 176, 304)
    return Stereo(), (views[0], views[1]), 79.0 * torch.rand(batch, 176, 304), _stereo_loss


def _stereo_loss(made: list[Tensor], wanted: Tensor) -> Tensor:
    first = functional.smooth_l1_loss(made[0], wanted)
    return 0.5 * first + functional.smooth_l1_loss(made[1], wanted)


def _interests(batch: int) -> Made:
    inputs = (
        torch.randint(700_000, (batch, 88)),
        torch.randint(1500, (batch, 88)),
        torch.randint(700_000, (batch,)),
        torch.randint(1500, (batch,)),
        torch.randint(8, 89, (batch,)),
    )
    return Interests(), inputs, torch.rand(batch, 1), click_loss


def _crystals(batch: int) -> Made:
    """Crystals of 36 atoms with 14 neighbours each."""
    atoms = 36 * batch
    owners = torch.arange(batch).repeat_interleave(36)
    sources = owners.mul(36).repeat_interleave(14) + torch.randint(36, (14 * atoms,))
    edges = torch.stack([sources, torch.arange(atoms).repeat_interleave(14)])
    inputs = (torch.randint(96, (atoms,)), edges, 8.0 * torch.rand(14 * atoms), owners)
    return Crystals(), inputs, torch.randn(batch), pixel_loss


def _centres(batch: int) -> Made:
    """Images with 40 objects each."""
    inputs = (torch.randn(batch, 3, 352, 352), torch.randint(88 * 88, (batch, 40)))
    wanted = (torch.rand(batch, 24, 88, 88), torch.rand(batch, 4, 40))
    return Centres(), inputs, wanted, _centre_loss


def _centre_loss(made: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Focal loss of places, weaker near centres, and the distance of sizes."""
    logits, near = made[0].float(), wanted[0]
    likely = torch.sigmoid(logits)
    is_centre = near.gt(0.999).float()
    found = functional.logsigmoid(logits) * (1 - likely) ** 2 * is_centre
    others = functional.logsigmoid(-logits) * likely**2 * (1 - near) ** 4 * (1 - is_centre)
    lost = -(found + others).sum() / is_centre.sum().clamp(min=1.0)
    return lost + 0.1 * functional.l1_loss(made[1].float(), wanted[1])


def _music(batch: int) -> Made:
    notes = random_words(batch, 1792, 388)
    return Music(), notes, notes.flatten(), class_loss


def _cells(batch: int) -> Made:
    counts = torch.randint(12, (batch, 11_000)).float()
    inputs = (counts, torch.randint(64, (batch,)), torch.randn(batch, 48))
    return Cells(), inputs, counts.clone(), _cell_loss


def _cell_loss(made: tuple[Tensor, ...], counts: Tensor) -> Tensor:
    """How unlikely the counts are by negative binomials, and how far the code is from noise."""
    rates, spread, mean, log_spread = made
    total = torch.log(rates + spread + 1e-8)
    likely = spread * (torch.log(spread + 1e-8) - total)
    likely = likely + counts * (torch.log(rates + 1e-8) - total)
    likely = likely + torch.lgamma(counts + spread) - torch.lgamma(spread)
    likely = likely - torch.lgamma(counts + 1.0)
    strayed = 0.5 * (mean**2 + log_spread.exp() - 1.0 - log_spread).sum(1)
    return strayed.mean() - likely.sum(1).mean()


def _quakes(batch: int) -> Made:
    wanted = torch.rand(batch, 3, 6144).softmax(1)
    return Quakes(), torch.randn(batch, 3, 6144), wanted, class_loss


def _street(batch: int) -> Made:
    """torchvision's LR-ASPP over a dilated MobileNet V3."""
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=13
    )
    labels = torch.randint(13, (batch, 288, 416))
    return model, torch.randn(batch, 3, 288, 416), labels, _street_loss


def _street_loss(made: dict[str, Tensor], wanted: Tensor) -> Tensor:
    return class_loss(made["out"], wanted)


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    if name == "marian":
        tokens = random_words(batch, 160, 36_000)
        model: nn.Module = library.MarianMTModel(
            library.MarianConfig(
                vocab_size=36_000,
                d_model=704,
                encoder_layers=4,
                decoder_layers=2,
                encoder_attention_heads=11,
                decoder_attention_heads=11,
                encoder_ffn_dim=2816,
                decoder_ffn_dim=2816,
                activation_function="swish",
                scale_embedding=True,
                max_position_embeddings=320,
                use_cache=False,
                pad_token_id=35_999,
                eos_token_id=0,
                decoder_start_token_id=35_999,
            )
        )
        inputs: dict[str, Any] = {"input_ids": tokens, "labels": random_words(batch, 144, 36_000)}
    else:
        tokens = random_words(batch, 576, 12_000)
        model = library.RoFormerForMaskedLM(
            library.RoFormerConfig(
                vocab_size=12_000,
                embedding_size=384,
                hidden_size=832,
                num_hidden_layers=4,
                num_attention_heads=13,
                intermediate_size=3328,
                max_position_embeddings=640,
            )
        )
        inputs = {"input_ids": tokens, "labels": tokens.clone()}
    return model, inputs, None, None


NETWORKS: Networks = {
    "speech-cleaner": (_cleaner, (80,), "adam"),
    "interpreter": (_interpreter, (448,), "adam"),
    "stereo": (_stereo, (32,), "adam"),
    "interests": (_interests, (24_576,), "adam"),
    "crystals": (_crystals, (1536,), "adamw"),
    "centres": (_centres, (56,), "adam"),
    "music": (_music, (7,), "adamw"),
    "cells": (_cells, (8192,), "adam"),
    "quakes": (_quakes, (448,), "adam"),
    "street": (_street, (112,), "sgd"),
    "marian": (lambda batch: _transformers("marian", batch), (72,), "adamw"),
    "roformer": (lambda batch: _transformers("roformer", batch), (26,), "adamw"),
}
