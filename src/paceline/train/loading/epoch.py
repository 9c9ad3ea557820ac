"""Which samples make up which global batch of an epoch: the same on all workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.teams import Team


@dataclass(frozen=True)
class Epoch:
    """The samples of an epoch, in order, and where each global batch of them ends."""

    order: torch.Tensor
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.ends)

    def batch(self, number: int) -> list[int]:
        """The samples of one global batch, by their indices."""
        start = self.ends[number - 1] if number else 0
        indices: list[int] = self.order[start : self.ends[number]].tolist()
        return indices


@dataclass(frozen=True, kw_only=True)
class Order:
    """How an epoch is made.

    Without a sampler the order follows from seed and epoch. A sampler, whose order may differ from
    worker to worker, is asked on the first worker alone.
    """

    num_samples: int
    batch_size: int | None
    """Samples of a global batch, or their sizes together where samples have sizes."""
    shuffle: bool
    seed: int
    drop_last: bool
    sizes: Sequence[int] | None
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None

    @property
    def is_sampled(self) -> bool:
        """Whether a sampler says what an epoch is."""
        return self.sampler is not None or self.batch_sampler is not None

    def make(self, epoch: int, team: Team, device: torch.device) -> Epoch:
        """An epoch's batches. All workers call it."""
        if self.batch_sampler is not None:
            return _told_by_first(self._of_batch_sampler, epoch, team, device)
        if self.sampler is not None:
            told = _told_by_first(self._of_sampler, epoch, team, device)
            return Epoch(told.order, self._ends(told.order))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(self.num_samples, generator=generator)
        else:
            order = torch.arange(self.num_samples)
        return Epoch(order, self._ends(order))

    def _ends(self, order: torch.Tensor) -> Sequence[int]:
        assert self.batch_size is not None
        if self.sizes is not None:
            return self._ends_by_size(order.tolist(), self.batch_size)
        count = len(order)
        stop = count - count % self.batch_size if self.drop_last else count
        ends = [*range(self.batch_size, stop + 1, self.batch_size)]
        return ends if self.drop_last or count % self.batch_size == 0 else [*ends, count]

    def _ends_by_size(self, order: Sequence[int], most: int) -> Sequence[int]:
        """Each batch has as many samples as fit, and at least one."""
        assert self.sizes is not None
        ends, total = [], 0
        for place, index in enumerate(order):
            if total and total + self.sizes[index] > most:
                ends.append(place)
                total = 0
            total += self.sizes[index]
        return ends if self.drop_last or not total else [*ends, len(order)]

    def _of_sampler(self, epoch: int) -> Epoch:
        set_epoch(self.sampler, epoch)
        assert self.sampler is not None
        return Epoch(torch.tensor([int(index) for index in self.sampler], dtype=torch.int64), [])

    def _of_batch_sampler(self, epoch: int) -> Epoch:
        set_epoch(self.batch_sampler, epoch)
        set_epoch(getattr(self.batch_sampler, "sampler", None), epoch)
        assert self.batch_sampler is not None
        batches = [[int(index) for index in batch] for batch in self.batch_sampler if len(batch)]
        ends = list(itertools.accumulate(map(len, batches)))
        order = torch.tensor(list(itertools.chain.from_iterable(batches)), dtype=torch.int64)
        return Epoch(order, ends)


def set_epoch(source: Any, epoch: int) -> None:
    """Tell a sampler or a data set which epoch it is, if it wants to know."""
    if callable(getattr(source, "set_epoch", None)):
        source.set_epoch(epoch)


def _told_by_first(make: Any, epoch: int, team: Team, device: torch.device) -> Epoch:
    """What the first worker makes, on all."""
    if team.size == 1:
        own: Epoch = make(epoch)
        return own
    counts, parts = torch.zeros(2, dtype=torch.int64), []
    if team.rank == 0:
        own = make(epoch)
        parts = [own.order, torch.tensor(own.ends, dtype=torch.int64)]
        counts = torch.tensor([len(part) for part in parts])
    counts = counts.to(device)
    team.broadcast(counts, 0).wait()
    flat = torch.cat(parts) if parts else torch.empty(int(counts.sum()), dtype=torch.int64)
    flat = flat.to(device)
    team.broadcast(flat, 0).wait()
    order, ends = torch.split(flat.cpu(), counts.tolist())
    return Epoch(order, ends.tolist())
