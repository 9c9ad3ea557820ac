"""A worker's own part of tensors that are sharded, as FSDP2's parameters are (DTensors)."""

from __future__ import annotations

import sys

import torch


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over several workers, each of which has a part."""
    # Its module takes long to import, and without it there is no such tensor.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that lies here, in the same memory; mostly all of it."""
    if not is_sharded(tensor):
        return tensor
    own: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return own


def sharded_like(own: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is sharded as ``tensor`` is, and whose part here is ``own``."""
    if not is_sharded(tensor):
        return own
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return DTensor.from_local(
        own,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
