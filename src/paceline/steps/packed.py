"""Packed sequences: samples of unequal length behind one another, without their padding.

How many rows that are depends on values, which a capture does not have: it takes every sample to be
as long as the longest, so that nothing is left out. ``batch_sizes``, how many samples go on at each
step, is then the batch at all of them.
"""

from __future__ import annotations

import warnings
import weakref

import torch
from torch import Tensor

_batches: dict[int, int] = {}  # by the storage of what says how many samples go on


def use_packed_sequences(library: torch.library.Library) -> None:
    """Let sequences without values be packed and padded, as long as ``library`` lives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this replaces PyTorch's own is the point
        library.impl("_pack_padded_sequence", _pack, "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl("_pad_packed_sequence", _pad, "AutogradCPU")  # type: ignore[no-untyped-call]


def batch_in(tensor: Tensor) -> int | None:
    """The number to be read, if a tensor says how many samples go on."""
    return _batches.get(tensor.untyped_storage()._cdata)


def _pack(samples: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    if batch_first:
        samples = samples.transpose(0, 1)
    steps, batch = samples.shape[:2]
    rows = samples.contiguous().view(steps * batch, *samples.shape[2:])
    return torch.cat([rows]), _batch_sizes(steps, batch)  # PyTorch joins parts of equal batch


def _batch_sizes(steps: int, batch: int) -> Tensor:
    sizes = torch.empty(steps, dtype=torch.int64)
    storage = sizes.untyped_storage()
    _batches[storage._cdata] = batch
    weakref.finalize(storage, _batches.pop, storage._cdata, None)
    return sizes


def _pad(
    rows: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, total_length: int
) -> tuple[Tensor, Tensor]:
    steps = batch_sizes.shape[0]
    batch = rows.shape[0] // steps
    sizes = (max(steps, total_length), batch, *rows.shape[1:])
    padded = rows.new_full(sizes, padding)
    padded[:steps].copy_(rows.view(steps, *sizes[1:]))
    lengths = torch.empty(batch, dtype=torch.int64)
    return padded.transpose(0, 1) if batch_first else padded, lengths
