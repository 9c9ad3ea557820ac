"""Networks of the last validation: `benchmarks/outside_zoo.py --networks unseen`.

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


class SoundCodec(nn.Module):
    """Sound through four residual codebooks and back, as in SoundStream."""

    def __init__(self, width: int = 32, code: int = 128, codes: int = 1024) -> None:
        super().__init__()
        strides = (2, 4, 5, 8)
        sizes = [width * 2**level for level in range(5)]
        self.start = nn.Conv1d(1, width, 7, padding=3)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for (before, after), stride in zip(pairwise(sizes), strides, strict=True):
            shrink = nn.Conv1d(before, after, 2 * stride, stride, padding=(stride + 1) // 2)
            grow = nn.ConvTranspose1d(
                after, before, 2 * stride, stride, (stride + 1) // 2, output_padding=stride % 2
            )
            self.down.append(nn.Sequential(*_sound_units(before), nn.ELU(), shrink))
            self.up.insert(0, nn.Sequential(nn.ELU(), grow, *_sound_units(before)))
        self.narrow = nn.Conv1d(sizes[-1], code, 3, padding=1)
        self.codes = nn.ParameterList(torch.randn(codes, code) for _ in range(4))
        self.widen = nn.Conv1d(code, sizes[-1], 7, padding=3)
        self.head = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        state = self.start(sound)
        for block in self.down:
            state = block(state)
        frames = self.narrow(state).transpose(1, 2).float()
        rest, near = frames, torch.zeros_like(frames)
        for table in self.codes:
            far = (table**2).sum(1) - 2 * (rest.detach() @ table.t())
            picked = functional.embedding(far.detach().argmin(2), table)
            near, rest = near + picked, rest - picked.detach()
        strayed = functional.mse_loss(near, frames.detach())
        strayed = strayed + 0.25 * functional.mse_loss(frames, near.detach())
        state = self.widen((frames + (near - frames).detach()).transpose(1, 2))
        for block in self.up:
            state = block(state)
        return torch.tanh(self.head(functional.elu(state))), strayed


class _SoundUnit(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.window = nn.Conv1d(width, width, 7, padding=3 * dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, state: Tensor) -> Tensor:
        grown: Tensor = state + self.mix(functional.elu(self.window(functional.elu(state))))
        return grown


def _sound_units(width: int) -> list[nn.Module]:
    return [_SoundUnit(width, dilation) for dilation in (1, 5)]


class OrganNet(nn.Module):
    """Organs in scans with thick slices: instance norm and three outputs, as in nnU-Net."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        sizes = (32, 64, 128, 256, 320)
        strides = ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2))
        flat, full = (1, 3, 3), (3, 3, 3)
        windows = (flat, full, full, full, full)
        self.down = nn.ModuleList(
            nn.Sequential(
                *_organ_layer(before, after, window, stride),
                *_organ_layer(after, after, window, (1, 1, 1)),
            )
            for before, after, window, stride in zip(
                (1, *sizes), sizes, windows, strides, strict=False
            )
        )
        self.up, self.mix = nn.ModuleList(), nn.ModuleList()
        for level in (3, 2, 1, 0):
            size, grown = sizes[level], strides[level + 1]
            self.up.append(nn.ConvTranspose3d(sizes[level + 1], size, grown, grown, bias=False))
            self.mix.append(
                nn.Sequential(
                    *_organ_layer(2 * size, size, windows[level], (1, 1, 1)),
                    *_organ_layer(size, size, windows[level], (1, 1, 1)),
                )
            )
        self.heads = nn.ModuleList(nn.Conv3d(size, classes, 1) for size in (128, 64, 32))

    def forward(self, scan: Tensor) -> list[Tensor]:
        state, kept, found = scan, [], []
        for block in self.down:
            state = block(state)
            kept.append(state)
        state = kept.pop()
        for level, (up, mix) in enumerate(zip(self.up, self.mix, strict=True)):
            state = mix(torch.cat([up(state), kept.pop()], 1))
            if level:
                made = self.heads[level - 1](state)
                found.append(functional.interpolate(made, scan.shape[2:], mode="trilinear"))
        return found


def _organ_layer(
    before: int, after: int, window: tuple[int, ...], stride: tuple[int, ...]
) -> tuple[nn.Module, ...]:
    padding = tuple(side // 2 for side in window)
    return (
        nn.Conv3d(before, after, window, stride, padding),  # type: ignore[arg-type]
        nn.InstanceNorm3d(after, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class EdgePoints(nn.Module):
    """Classes of point clouds whose neighbours are found anew in every layer, as in DGCNN."""

    def __init__(self, around: int = 20) -> None:
        super().__init__()
        self.around = around
        sizes = (3, 64, 64, 128, 256)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * before, after, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.LeakyReLU(0.2, inplace=True),
            )
            for before, after in pairwise(sizes)
        )
        self.join = nn.Sequential(
            nn.Conv1d(sum(sizes[1:]), 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2)
        )
        self.head = nn.Sequential(
            nn.Linear(2048, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.5),
            nn.Linear(512, 55),
        )

    @torch.no_grad()
    def _nearest(self, state: Tensor) -> Tensor:
        squares = (state**2).sum(1)
        near = 2 * state.transpose(1, 2) @ state - squares.unsqueeze(1) - squares.unsqueeze(2)
        return near.topk(self.around, dim=-1)[1]

    def forward(self, points: Tensor) -> Tensor:
        state, kept = points, []
        for layer in self.layers:
            batch, width, count = state.shape
            picked = self._nearest(state).flatten(1).unsqueeze(1).expand(-1, width, -1)
            around = state.gather(2, picked).view(batch, width, count, self.around)
            own = state.unsqueeze(3)
            state = layer(torch.cat([around - own, own.expand_as(around)], 1)).amax(3)
            kept.append(state)
        joined = self.join(torch.cat(kept, 1))
        found: Tensor = self.head(torch.cat([joined.amax(2), joined.mean(2)], 1))
        return found


class Potential(nn.Module):
    """Energies of molecules: filters made from distances weigh the neighbours, as in SchNet."""

    def __init__(self, width: int = 192, waves: int = 64, layers: int = 5) -> None:
        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.centres = nn.Buffer(torch.linspace(0.0, 6.0, waves))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(waves, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.values = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.head = nn.Sequential(
            nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1)
        )

    def forward(self, atoms: Tensor, edges: Tensor, distances: Tensor, owners: Tensor) -> Tensor:
        state = self.atoms(atoms)
        given = torch.exp(-10.0 * (distances.unsqueeze(1) - self.centres) ** 2)
        fades = 0.5 * (torch.cos(distances * 0.5236) + 1.0).unsqueeze(1)
        for weigh, value, update in zip(self.filters, self.values, self.updates, strict=True):
            sent = value(state).index_select(0, edges[0]) * (weigh(given) * fades)
            heard = sent.new_zeros(state.shape).index_add(0, edges[1], sent)
            state = state + update(heard)
        parts: Tensor = self.head(state)[:, 0].float()
        molecules = len(atoms) // 24
        return parts.new_zeros(molecules).scatter_add(0, owners, parts)


class CrossFeatures(nn.Module):
    """One large table for all fields, layers that cross them beside plain ones, as in DCN."""

    def __init__(self, rows: int = 4_000_000, width: int = 48, fields: int = 36) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        joined = fields * width + 16
        self.crosses = nn.ModuleList(nn.Linear(joined, joined) for _ in range(3))
        sizes = (joined, 1024, 768, 384)
        self.plain = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(0.1)
                )
                for before, after in pairwise(sizes)
            )
        )
        self.head = nn.Linear(joined + sizes[-1], 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        first = torch.cat([torch.log1p(numbers), self.table(categories).flatten(1)], 1)
        crossed = first
        for cross in self.crosses:
            crossed = first * cross(crossed) + crossed
        clicked: Tensor = self.head(torch.cat([crossed, self.plain(first)], 1))
        return clicked


class Genome(nn.Module):
    """Signals along DNA: convolutions and pooling, then attention over bins, as in Enformer."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 3, bins: int = 1536) -> None:
        super().__init__()
        sizes = (192, 192, 224, 256, 320, width)
        self.start = nn.Conv1d(4, sizes[0], 15, padding=7)
        self.tower = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(before),
                nn.GELU(),
                nn.Conv1d(before, after, 5, padding=2),
                nn.MaxPool1d(2),
            )
            for before, after in pairwise(sizes)
        )
        places = torch.arange(bins)
        self.far = nn.Buffer(places.unsqueeze(0) - places.unsqueeze(1) + bins - 1)
        self.bias = nn.Embedding(2 * bins - 1, heads)
        self.layers = nn.ModuleList(_GenomeLayer(width, heads) for _ in range(layers))
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 96)
        )

    def forward(self, letters: Tensor) -> Tensor:
        state = self.start(letters)
        for block in self.tower:
            state = block(state)
        state = state.transpose(1, 2)
        bias = self.bias(self.far).permute(2, 0, 1)
        for layer in self.layers:
            state = layer(state, bias)
        return functional.softplus(self.head(state))


class _GenomeLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 2 * width), nn.Dropout(0.1), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, state: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = state.shape
        parts = self.parts(self.norms[0](state)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(2, 3) + bias
        seen = functional.dropout(scores.softmax(3), 0.05).to(value.dtype) @ value
        state = state + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        grown: Tensor = state + self.wide(self.norms[1](state))
        return grown


class GatedWords(nn.Module):
    """Hidden words by layers that gate each place by all others, as in gMLP."""

    def __init__(
        self, words: int = 16_000, width: int = 640, inner: int = 3840, layers: int = 6
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(_GatedLayer(width, inner) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.words(tokens)
        for layer in self.layers:
            state = layer(state)
        logits: Tensor = self.head(self.norm(state))
        return logits.flatten(0, 1)


class _GatedLayer(nn.Module):
    def __init__(self, width: int, inner: int, length: int = 320) -> None:
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(inner // 2)
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner // 2, width)
        self.places = nn.Conv1d(length, length, 1)

    def forward(self, state: Tensor) -> Tensor:
        kept, gate = functional.gelu(self.widen(self.norm(state))).chunk(2, 2)
        grown: Tensor = state + self.narrow(kept * self.places(self.gate_norm(gate)))
        return grown


class Detector(nn.Module):
    """Objects at every place of four resolutions, with heads that these share, as in FCOS."""

    def __init__(self, width: int = 80, wide: int = 160, classes: int = 40) -> None:
        super().__init__()
        sizes = (width, width, 2 * width, 4 * width, 8 * width)
        self.start = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        self.stages = nn.ModuleList(
            nn.Sequential(
                _DetectorBlock(before, after, 2 if level else 1), _DetectorBlock(after, after, 1)
            )
            for level, (before, after) in enumerate(pairwise(sizes))
        )
        self.sides = nn.ModuleList(nn.Conv2d(size, wide, 1) for size in sizes[2:])
        self.smooth = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1) for _ in sizes[2:])
        self.last = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.kinds = _detector_head(wide, classes)
        self.boxes = _detector_head(wide, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        state, sides = self.start(images), []
        for level, stage in enumerate(self.stages):
            state = stage(state)
            if level:
                sides.append(self.sides[level - 1](state))
        for level in (1, 0):
            grown = functional.interpolate(sides[level + 1], scale_factor=2.0, mode="nearest")
            sides[level] = sides[level] + grown
        levels = [smooth(side) for smooth, side in zip(self.smooth, sides, strict=True)]
        levels.append(self.last(levels[-1]))
        kinds = torch.cat([self.kinds(each).flatten(2) for each in levels], 2)
        boxes = torch.cat([self.boxes(each).flatten(2) for each in levels], 2)
        return kinds, functional.relu(boxes)


class _DetectorBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short: nn.Module = nn.Identity()
        if before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, image: Tensor) -> Tensor:
        return functional.relu(self.body(image) + self.short(image))


def _detector_head(width: int, made: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(20, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, made, 3, padding=1))


class DualPath(nn.Module):
    """Voices from a mixture by LSTMs within pieces and across them, as in DPRNN-TasNet."""

    def __init__(self, width: int = 64, hidden: int = 192, piece: int = 120) -> None:
        super().__init__()
        self.piece = piece
        self.encode = nn.Conv1d(1, width, 16, stride=8, padding=4, bias=False)
        self.start = nn.Sequential(nn.GroupNorm(1, width), nn.Conv1d(width, width, 1))
        self.recurrent = nn.ModuleList(
            nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for _ in range(6)
        )
        self.mixes = nn.ModuleList(nn.Linear(2 * hidden, width) for _ in self.recurrent)
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in self.recurrent)
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv2d(width, 2 * width, 1))
        self.decode = nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        frames = self.encode(sound)
        hop = self.piece // 2
        state = functional.pad(self.start(frames), (hop, hop)).unfold(2, self.piece, hop)
        batch, width, pieces, _ = state.shape
        layers = zip(self.recurrent, self.mixes, self.norms, strict=True)
        for level, (recurrent, mix, norm) in enumerate(layers):
            order = (0, 3, 2, 1) if level % 2 else (0, 2, 3, 1)
            rows = state.permute(order)
            made = mix(recurrent(rows.flatten(0, 1))[0]).view(rows.shape)
            state = state + norm(made.permute((0, 3, 2, 1) if level % 2 else (0, 3, 1, 2)))
        made = self.mask(state)
        left, right = made.view(batch, 2 * width, pieces, 2, hop).unbind(3)
        masks = torch.relu(left[:, :, 1:] + right[:, :, :-1]).view(batch, 2, width, -1)
        voices: Tensor = self.decode((masks * frames.unsqueeze(1)).flatten(0, 1))
        return voices.view(batch, 2, -1)


def _codec(batch: int) -> Made:
    sound = torch.randn(batch, 1, 19_200)
    return SoundCodec(), sound, sound.clone(), _codec_loss


def _codec_loss(made: tuple[Tensor, Tensor], wanted: Tensor) -> Tensor:
    return functional.l1_loss(made[0].float(), wanted) + made[1]


def _organs(batch: int) -> Made:
    labels = torch.randint(5, (batch, 32, 128, 160))
    return OrganNet(), torch.randn(batch, 1, 32, 128, 160), labels, _organ_loss


def _organ_loss(made: list[Tensor], wanted: Tensor) -> Tensor:
    """Cross entropy at each resolution, and how little the finest one's organs overlap."""
    total = class_loss(made[0], wanted) + class_loss(made[1], wanted) + class_loss(made[2], wanted)
    likely = made[2].softmax(1, dtype=torch.float32)
    real = torch.zeros_like(likely).scatter(1, wanted.unsqueeze(1), 1.0)
    shared = (likely * real).sum((2, 3, 4))
    return total - (2 * shared / (likely.sum((2, 3, 4)) + real.sum((2, 3, 4)) + 1e-5)).mean()


def _edge_points(batch: int) -> Made:
    labels = random_words(batch, 1, 55)[:, 0]
    return EdgePoints(), torch.randn(batch, 3, 1280), labels, class_loss


def _potential(batch: int) -> Made:
    """Molecules of 24 atoms with 18 neighbours each."""
    atoms = 24 * batch
    owners = torch.arange(batch).repeat_interleave(24)
    first = owners.mul(24).repeat_interleave(18)
    edges = first + torch.randint(24, (2, 18 * atoms))
    inputs = (torch.randint(100, (atoms,)), edges, 6.0 * torch.rand(18 * atoms), owners)
    return Potential(), inputs, torch.randn(batch), pixel_loss


def _crosses(batch: int) -> Made:
    inputs = (torch.rand(batch, 16), torch.randint(4_000_000, (batch, 36)))
    return CrossFeatures(), inputs, torch.rand(batch, 1), click_loss


def _genome(batch: int) -> Made:
    return Genome(), torch.randn(batch, 4, 49_152), torch.rand(batch, 1536, 96), _count_loss


def _count_loss(made: Tensor, wanted: Tensor) -> Tensor:
    return functional.poisson_nll_loss(made, wanted, log_input=False)


def _gated(batch: int) -> Made:
    tokens = random_words(batch, 320, 16_000)
    return GatedWords(), tokens, tokens.flatten(), class_loss


def _detector(batch: int) -> Made:
    places = 40 * 56 + 20 * 28 + 10 * 14 + 5 * 7
    wanted = (torch.rand(batch, 40, places), torch.rand(batch, 4, places))
    return Detector(), torch.randn(batch, 3, 320, 448), wanted, _detector_loss


def _detector_loss(made: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Focal loss of kinds, and the distance of boxes."""
    kinds, boxes = made[0].float(), made[1].float()
    errors = functional.binary_cross_entropy_with_logits(kinds, wanted[0], reduction="none")
    likely = torch.sigmoid(kinds)
    missed = likely + wanted[0] - 2 * likely * wanted[0]
    return (errors * missed**2).mean() + functional.smooth_l1_loss(boxes, wanted[1])


def _dual_path(batch: int) -> Made:
    return DualPath(), torch.randn(batch, 1, 24_000), torch.randn(batch, 2, 24_000), pixel_loss


def _regnet(batch: int) -> Made:
    """torchvision's RegNet X 1.6GF: convolutions in groups of 24 channels."""
    import torchvision

    library = torchvision.models.regnet
    with torch.device("cpu"):  # widths are computed by tensors
        blocks = library.BlockParams.from_init_params(
            depth=18, w_0=80, w_a=34.01, w_m=2.25, group_width=24
        )
    model = library.RegNet(blocks, num_classes=365)
    return model, torch.randn(batch, 3, 192, 192), random_words(batch, 1, 365)[:, 0], class_loss


def _transformers(name: str, batch: int) -> Made:
    import transformers as library

    if name == "m2m100":
        tokens = random_words(batch, 192, 48_000)
        model: nn.Module = library.M2M100ForConditionalGeneration(
            library.M2M100Config(
                vocab_size=48_000,
                d_model=576,
                encoder_layers=3,
                decoder_layers=3,
                encoder_attention_heads=9,
                decoder_attention_heads=9,
                encoder_ffn_dim=2304,
                decoder_ffn_dim=2304,
                encoder_layerdrop=0.0,
                decoder_layerdrop=0.0,
                max_position_embeddings=256,
                use_cache=False,
            )
        )
    else:
        tokens = random_words(batch, 448, 64_000)
        model = library.GemmaForCausalLM(
            library.GemmaConfig(
                vocab_size=64_000,
                hidden_size=960,
                intermediate_size=3840,
                num_hidden_layers=4,
                num_attention_heads=8,
                num_key_value_heads=1,
                head_dim=128,
                use_cache=False,
            )
        )
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    return model, inputs, None, None


NETWORKS: Networks = {
    "sound-codec": (_codec, (48,), "adamw"),
    "organs": (_organs, (2,), "sgd"),
    "edge-points": (_edge_points, (24,), "sgd"),
    "potential": (_potential, (1024,), "adamw"),
    "cross-features": (_crosses, (16_384,), "adam"),
    "genome": (_genome, (8,), "adamw"),
    "gated-words": (_gated, (48,), "adamw"),
    "detector": (_detector, (48,), "sgd"),
    "dual-path": (_dual_path, (32,), "adam"),
    "regnet": (_regnet, (128,), "sgd"),
    "m2m100": (lambda batch: _transformers("m2m100", batch), (48,), "adamw"),
    "gemma": (lambda batch: _transformers("gemma", batch), (12,), "adamw"),
}
