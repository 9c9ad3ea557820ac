"""How a set of tensors lies in one flat tensor, for communication in few, large messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from paceline.strategies.local import local


class FlatLayout:
    """Places for tensors, one after another, in a flat tensor of one type on one device.

    Packing and unpacking are one fused copy, near the speed of memory. The parameters themselves
    stay where they are: their memory format, their identity and ``state_dict`` are the user's.
    """

    def __init__(self, sources: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self._sources = list(sources)
        self.dtype = dtype
        self.device = sources[0].device
        self._shapes = [_as_real(source).shape for source in sources]
        self.numel = sum(shape.numel() for shape in self._shapes)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors where they lie now: a parameter gets other memory by ``p.data = …``."""
        return [_as_real(source) for source in self._sources]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The tensors' places in ``flat``, in their shapes."""
        parts = torch.split(flat, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def new_flat(self) -> torch.Tensor:
        """A flat tensor with room for all, not filled."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def pack(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """A flat copy of the tensors as they are now, in ``out`` if it is given.

        On the CPU a new tensor of many megabytes costs several times the copy: the system first
        has to find and clear its pages.
        """
        flat = self.new_flat() if out is None else out
        torch._foreach_copy_(self.views(flat), self.tensors)
        return flat

    @torch.no_grad()
    def unpack(self, flat: torch.Tensor) -> None:
        """Give the tensors the values in ``flat``."""
        torch._foreach_copy_(self.tensors, self.views(flat))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex tensors travel as what they are made of, pairs of real numbers."""
    values = local(tensor.detach())
    return torch.view_as_real(values) if values.is_complex() else values


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of ``dtype`` are averaged: narrow ones would lose the average."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def lay_out(tensors: Iterable[torch.Tensor]) -> list[FlatLayout]:
    """Layouts for floating-point tensors, one for each device and type of average."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, wide_dtype(_as_real(tensor).dtype)), []).append(tensor)
    return [FlatLayout(group, dtype) for (_device, dtype), group in groups.items()]
