"""What optimizers keep from step to step: whether workers keep the same, and how they come to."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.strategies import equality
from paceline.strategies.equality import checksum, find_unequal, make_equal
from paceline.strategies.local import is_sharded, local
from paceline.teams import Team
from paceline.train.fingerprint import is_same

_PLAIN = (bool, int, float, str, type(None))


def is_equal(optimizers: Sequence[Optimizer], team: Team) -> bool:
    """Whether all members' optimizers keep the same, bit for bit."""
    if team.size == 1:
        return True
    sums = [checksum(tensor).item() for tensor in _tensors(optimizers).values()]
    return is_same(_structure(optimizers) + json.dumps(sums).encode(), team, _device(optimizers))


def have_same_settings(optimizers: Sequence[Optimizer], team: Team) -> bool:
    """Whether all members' optimizers have the same learning rates and other settings."""
    groups = [
        sorted((name, value) for name, value in group.items() if isinstance(value, _PLAIN))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    return is_same(json.dumps(groups).encode(), team, _device(optimizers))


def take_over(
    optimizers: Sequence[Optimizer], team: Team, source: int, *, with_settings: bool = False
) -> None:
    """Give all members what one member's optimizers keep."""
    if any(torch.is_tensor(value) and is_sharded(value) for _, value in _entries(optimizers)):
        _take_over_shards(optimizers, team, source)
        return
    file = io.BytesIO()
    if team.rank == source:
        torch.save([optimizer.state_dict() for optimizer in optimizers], file)
    data = send_bytes(file.getvalue(), team, source, _device(optimizers))
    if team.rank == source:
        return
    states = torch.load(io.BytesIO(data), weights_only=True)
    for optimizer, state in zip(optimizers, states, strict=True):
        if not with_settings:
            state["param_groups"] = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(state)


def _take_over_shards(optimizers: Sequence[Optimizer], team: Team, source: int) -> None:
    if not is_same(_structure(optimizers), team, _device(optimizers)):
        raise ValueError(
            "the optimizers of the nodes keep different things of a model that is sharded; make "
            "new optimizers, or load the same state on all nodes"
        )
    equality.take_over(_tensors(optimizers).values(), team, source)


def average(optimizers: Sequence[Optimizer], team: Team) -> None:
    """Give all members the average; the first one's, where they do not keep the same things."""
    if is_same(_structure(optimizers), team, _device(optimizers)):
        tensors = _tensors(optimizers)
        if find_unequal(tensors, team):
            make_equal(tensors, team)
    else:
        take_over(optimizers, team, 0)


def send_bytes(data: bytes, team: Team, source: int, device: torch.device) -> bytes:
    """The source's bytes, whatever the others have."""
    is_source = team.rank == source
    length = int(team.agree(float(len(data)) if is_source else 0.0, "max"))
    content = bytearray(data) if is_source else bytearray(length)
    message = torch.frombuffer(content, dtype=torch.uint8).to(device)
    team.broadcast(message, source).wait()
    return message.cpu().numpy().tobytes()


def _device(optimizers: Sequence[Optimizer]) -> torch.device:
    device: torch.device = optimizers[0].param_groups[0]["params"][0].device
    return device


def _entries(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, Any]]:
    for number, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for place, parameter in enumerate(parameters):
            for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                yield f"optimizer {number}, parameter {place}, {name}", value


def _tensors(optimizers: Sequence[Optimizer]) -> dict[str, torch.Tensor]:
    return {name: local(value) for name, value in _entries(optimizers) if torch.is_tensor(value)}


def _structure(optimizers: Sequence[Optimizer]) -> bytes:
    """All but the tensors' values. Functions and the like have names that differ by process."""
    found = [
        (name, list(value.shape), str(value.dtype)) if torch.is_tensor(value) else (name, value)
        for name, value in _entries(optimizers)
        if torch.is_tensor(value) or isinstance(value, _PLAIN)
    ]
    return json.dumps(found).encode()
