"""How large a batch this worker's memory holds, where that can be known: on a GPU."""

from __future__ import annotations

import torch

_USABLE = 0.9
"""Of the memory that is free: allocators leave gaps, and batches differ."""


class Room:
    """Follows what a GPU's memory takes per unit of a batch, such as a sample."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base_bytes = 0
        self._largest = 0.0

    def begin(self, units: float) -> None:
        """A batch of so many units begins: what is in memory now does not grow with it."""
        self._largest = max(self._largest, units)
        if self._device.type == "cuda":
            self._base_bytes = torch.cuda.memory_allocated(self._device)

    def most(self) -> int | None:
        """The most units that a batch may have; None if it is not known."""
        if self._device.type != "cuda" or self._largest < 1:
            return None
        # The peak is of the whole run, and others' numbers stay theirs: a larger one, of an
        # evaluation perhaps, only makes this more careful.
        grown_bytes = torch.cuda.max_memory_allocated(self._device) - self._base_bytes
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        own_bytes = torch.cuda.memory_reserved(self._device) - self._base_bytes
        room = _USABLE * (free_bytes + own_bytes) * self._largest / max(grown_bytes, 1)
        return max(int(self._largest), int(room))
