"""A nested state as named tensors and a skeleton, as torch.distributed.checkpoint stores it."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch

_MARK = "paceline: a tensor"
_DICTS = (dict, OrderedDict)


def take_apart(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], bytes]:
    """The tensors of ``state`` by name, such as ``model.0.weight``, and all but them as bytes."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _without_tensors(state, "", tensors)
    file = io.BytesIO()
    torch.save(skeleton, file)
    return tensors, file.getvalue()


def put_together(
    tensors: dict[str, torch.Tensor], skeleton: bytes, device: torch.device
) -> dict[str, Any]:
    """The state again. What was on a GPU comes to ``device``, and the rest stays on the CPU."""
    found = torch.load(io.BytesIO(skeleton), map_location="cpu", weights_only=True)
    state: dict[str, Any] = _with_tensors(found, tensors, device)
    return state


def _without_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor) and _can_stand_alone(value):
        while name in tensors:  # {"a.b": one, "a": {"b": other}}
            name += "'"
        tensors[name] = value.detach()
        return (_MARK, name, value.device.type)
    kind = type(value)
    if kind in _DICTS:
        made = kind(
            (key, _without_tensors(item, f"{name}.{key}" if name else str(key), tensors))
            for key, item in value.items()
        )
        if kind is OrderedDict:  # a module's state dict carries its modules' versions
            vars(made).update(vars(value))
        return made
    if kind in (list, tuple):
        return kind(_without_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: dict[str, torch.Tensor], device: torch.device) -> Any:
    kind = type(value)
    if kind is tuple and len(value) == 3 and value[0] == _MARK:
        _, name, place = value
        return tensors[name] if place == "cpu" else tensors[name].to(device)
    if kind in _DICTS:
        for key, item in value.items():
            value[key] = _with_tensors(item, tensors, device)
        return value
    if kind in (list, tuple):
        return kind(_with_tensors(item, tensors, device) for item in value)
    return value


def _can_stand_alone(tensor: torch.Tensor) -> bool:
    """Whether its values, type and shape are all of it. Others stay where they are."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_plain and tensor.layout == torch.strided and not tensor.is_quantized
