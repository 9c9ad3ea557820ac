"""Whether all workers attach the same thing: checked before they would wait for each other."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Strategy
from paceline.teams import Team, Workers
from paceline.version import __version__


def fingerprint(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    strategy: Strategy,
    settings: Mapping[str, object],
) -> dict[str, str]:
    """What must be the same on all workers: a value for each name, the telling ones first."""
    kind = type(strategy)
    # Of other options, such as functions, each process has its own representation.
    options = {
        name: value
        for name, value in strategy.options.model_dump().items()
        if isinstance(value, bool | int | float | str | None)
    }
    return {
        "paceline": __version__,
        "torch": torch.__version__,
        "strategy": f"{kind.__module__}.{kind.__qualname__}",
        **{f"option {name}": repr(value) for name, value in options.items()},
        **{name: repr(value) for name, value in settings.items()},
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in optimizers),
        **{f"parameter {name}": _described(p) for name, p in model.named_parameters()},
        **{f"buffer {name}": _described(b) for name, b in model.named_buffers()},
    }


def _described(tensor: torch.Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{shape} {kind}{'' if tensor.requires_grad else ' without gradient'}"


def is_same(data: bytes, team: Team, device: torch.device) -> bool:
    """Whether all members have the same bytes: two numbers travel, however many bytes there are.

    Args:
        data: This worker's bytes.
        team: Who compares.
        device: Where the team's tensors are.

    """
    if team.size == 1:
        return True
    digest = int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")
    extremes = torch.tensor([digest, -digest], device=device)
    team.all_reduce(extremes, "max").wait()
    return bool(extremes[0] == -extremes[1])


def check_agreement(own: Mapping[str, str], workers: Workers, device: torch.device) -> None:
    """Refuse, on all workers, if one of them attaches something else: which one, and what."""
    data = json.dumps(own).encode()
    if is_same(data, workers.world, device):
        return
    texts = [zlib.decompress(part) for part in workers.world.gather(zlib.compress(data))]
    usual = Counter(texts).most_common(1)[0][0]
    reference = texts.index(usual)
    odd = next(rank for rank, text in enumerate(texts) if text != usual)
    expected, found = json.loads(usual), json.loads(texts[odd])
    name = next(key for key in [*expected, *found] if expected.get(key) != found.get(key))
    raise ValueError(
        f"worker {odd} on {_node_of(odd, workers)} attaches something else than worker "
        f"{reference} on {_node_of(reference, workers)}: {name} is "
        f"{found.get(name, 'missing')} there and {expected.get(name, 'missing')} here; all workers "
        "must attach the same model with the same strategy and options"
    )


def _node_of(rank: int, workers: Workers) -> str:
    return next(
        name
        for name, ranks in zip(workers.node_names, workers.ranks_by_node, strict=True)
        if rank in ranks
    )
