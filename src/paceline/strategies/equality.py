"""Whether workers hold the same values, bit for bit, and how they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from paceline.strategies.layout import lay_out
from paceline.strategies.local import local
from paceline.teams import Team

_CHUNK_WORDS = 1 << 20
# Odd, and far from a power of two: Knuth's multiplicative hashing, with wrap-around at 64 bits.
_MULTIPLIER = -7046029254386353131


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """A number that equal bits in equal order share, and others all but never do."""
    data = local(tensor.detach()).contiguous().view(-1).view(torch.uint8)
    words = torch.nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), _CHUNK_WORDS):
        part = words[start : start + _CHUNK_WORDS]
        place = torch.arange(start, start + part.numel(), device=tensor.device)
        total += ((part ^ (part >> 29)) * ((2 * place + 1) * _MULTIPLIER)).sum()
    # Two bits are given up, so that the number can be negated.
    return total >> 2


def find_unequal(tensors: Mapping[str, torch.Tensor], team: Team) -> list[str]:
    """The names of the tensors that differ between a team's members, who all have these names."""
    if team.size == 1 or not tensors:
        return []
    device = next(iter(tensors.values())).device
    sums = torch.stack([checksum(tensor).to(device) for tensor in tensors.values()])
    extremes = torch.cat([sums, -sums])
    team.all_reduce(extremes, "max").wait()
    largest, smallest = extremes[: len(sums)], -extremes[len(sums) :]
    if bool((largest == smallest).all()):
        return []
    return [
        name
        for name, is_equal in zip(tensors, (largest == smallest).tolist(), strict=True)
        if not is_equal
    ]


@torch.no_grad()
def make_equal(
    tensors: Mapping[str, torch.Tensor], team: Team, *, weight: float | torch.Tensor = 1.0
) -> None:
    """Give all members the average; of what has none, such as counters, the first one's.

    Args:
        tensors: This member's.
        team: Who gets equal.
        weight: What this member counts in the average. A tensor on all members or on none.

    """
    floats = [tensor for tensor in tensors.values() if _has_average(tensor)]
    is_weighted = isinstance(weight, torch.Tensor)
    for layout in lay_out(floats):
        flat = layout.pack()
        if is_weighted:
            flat = torch.cat([flat * weight, flat.new_ones(1) * weight])
        team.all_reduce(flat, "mean").wait()
        layout.unpack(flat[:-1] / flat[-1] if is_weighted else flat)
    take_over([tensor for tensor in tensors.values() if not _has_average(tensor)], team, 0)


@torch.no_grad()
def take_over(tensors: Iterable[torch.Tensor], team: Team, source: int) -> None:
    """Give all members the tensors of one of them, in few, large messages."""
    if team.size == 1:
        return
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(local(tensor.detach()))
    started = []
    for group in groups.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        # As bytes: not every backend knows every type.
        started.append((team.broadcast(flat.view(torch.uint8), source), group, flat))
    for pending, group, flat in started:
        pending.wait()
        parts = torch.split(flat, [tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def _has_average(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
