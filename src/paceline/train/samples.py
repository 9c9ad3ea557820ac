"""One worker's samples, and the order that all workers' samples have together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate


class Samples:
    """Tensors whose first dimension counts samples, or a data set whose items are collated."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._tensors = _tensors_of(data)
        if self._tensors:
            sizes = {len(tensor) if tensor.dim() else 0 for tensor in self._tensors}
            if len(sizes) > 1:
                raise ValueError(
                    f"the objective's tensors have {_listed(sizes)} samples; they must have as "
                    "many each"
                )
        elif isinstance(data, Mapping | tuple) or not (
            hasattr(data, "__len__") and hasattr(data, "__getitem__")
        ):
            raise ValueError(
                "the objective's data must be tensors (one, a tuple or a mapping) whose first "
                f"dimension counts samples, or a data set with a length, not {type(data).__name__}"
            )

    def __len__(self) -> int:
        return len(self._tensors[0]) if self._tensors else len(self._data)

    def loss_of(self, loss_fn: Any, start: int, stop: int) -> torch.Tensor:
        """The loss of some of the samples."""
        part = self._part(start, stop)
        if isinstance(part, Mapping):
            loss = loss_fn(**part)
        else:
            loss = loss_fn(*part) if isinstance(part, list | tuple) else loss_fn(part)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(
                "the objective's loss_fn must return the mean loss of the samples it is given, as "
                "a tensor with one value"
            )
        return loss.reshape(())

    def _part(self, start: int, stop: int) -> Any:
        if not self._tensors:
            return default_collate([self._data[place] for place in range(start, stop)])
        if isinstance(self._data, Mapping):
            return {name: tensor[start:stop] for name, tensor in self._data.items()}
        if isinstance(self._data, torch.Tensor):
            return self._data[start:stop]
        return [tensor[start:stop] for tensor in self._tensors]


def _tensors_of(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    values: Sequence[Any] = ()
    if isinstance(data, Mapping):
        values = list(data.values())
    elif isinstance(data, list | tuple):
        values = data
    return list(values) if all(isinstance(each, torch.Tensor) for each in values) else []


def _listed(sizes: set[int]) -> str:
    return " and ".join(str(size) for size in sorted(sizes))


class SampleOrder:
    """All workers' samples in one row, each worker's spread evenly over it.

    Sample j of a worker with n stands at (j + 1/2) / n of the row. Where worker r has the samples
    ``data[r::num_workers]`` of a data set, the row is the data set.
    """

    def __init__(self, counts: Sequence[int], rank: int) -> None:
        self.total = sum(counts)
        places = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
        owners = np.repeat(np.arange(len(counts)), counts)
        row = np.lexsort((owners, places))
        self._own = np.flatnonzero(owners[row] == rank)

    def own_range(self, start: int, stop: int) -> tuple[int, int]:
        """Which of this worker's samples lie between two places of the row."""
        first, last = np.searchsorted(self._own, [start, stop])
        return int(first), int(last)
