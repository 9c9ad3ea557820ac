"""Elements picked by a mask: how many depends on values, which a capture does not have.

It takes all of them to be picked, so that nothing is left out. CUDA lists the places where a mask
is set before it picks, and again before it puts the gradients back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_PICK = torch.ops.aten.index.Tensor
_SELECT = torch.ops.aten.masked_select.default
_PUT = (
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
)


def is_pick(func: Any, args: Sequence[Any]) -> bool:
    """Whether a mask decides how many elements a call returns."""
    return func is _SELECT or (func is _PICK and bool(masks_in(args)))


def is_put_back(func: Any, args: Sequence[Any]) -> bool:
    """Whether it is the gradient of a pick: what a mask picked is added up where it was."""
    return func in _PUT and len(args) > 3 and bool(args[3]) and bool(masks_in(args))


def masks_in(args: Sequence[Any]) -> list[Tensor]:
    """The masks among a call's indices."""
    return [each for each in args[1] if each is not None and each.dtype == torch.bool]


def selected(given: Tensor, mask: Tensor) -> Tensor:
    """What ``masked_select`` returns: everything."""
    wide, _ = torch.broadcast_tensors(given, mask)  # type: ignore[no-untyped-call]
    return given.new_empty(wide.numel())


def with_places(args: Sequence[Any], places: Sequence[Tensor]) -> tuple[Any, ...]:
    """The arguments with lists of places instead of masks, one list for each mask."""
    lists = iter(places)
    indices: list[Tensor | None] = []
    for each in args[1]:
        if each is None or each.dtype != torch.bool:
            indices.append(each)
        else:
            indices += next(lists).unbind(1)
    return args[0], indices, *args[2:]


def places_of(mask: Tensor) -> Tensor:
    """Where a mask is set, a row for each element."""
    return torch.empty(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)
