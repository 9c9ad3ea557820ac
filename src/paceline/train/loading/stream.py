"""Loaders over data sets that can only be read from the beginning."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import default_collate

from paceline.train.loading.epoch import set_epoch
from paceline.train.loading.host import Host
from paceline.train.loading.loader import Loader, Portion
from paceline.train.loading.sharing import Sharing


class StreamLoader(Loader):
    """Over a stream that is the same on all workers: each reads all of it and keeps its share."""

    def __init__(
        self,
        dataset: IterableDataset[Any],
        host: Host,
        sharing: Sharing,
        *,
        batch_size: int,
        drop_last: bool,
        identity: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        super().__init__(host, sharing, batch_size=batch_size, identity=identity)
        options = dict(options)
        self._collate = options.pop("collate_fn", None) or default_collate
        self._dataset = dataset
        self._drop_last = drop_last
        # One by one: how many a worker takes of them is not known when they are fetched.
        options = self._with_own_generator(options)
        self._data_loader = DataLoader(dataset, batch_size=None, **options)

    def __len__(self) -> int:
        """Batches of an epoch, where the data set tells its length."""
        if not isinstance(self._dataset, Sized):
            return super().__len__()
        num_whole, rest = divmod(len(self._dataset), self.place.batch_size)
        return num_whole + (rest > 0 and not self._drop_last)

    def _samples(self) -> Iterator[Any]:
        set_epoch(self._dataset, self.place.epoch)
        self._reseed()
        return iter(self._data_loader)

    def _fetch(self) -> Generator[tuple[Any, Portion]]:
        samples = self._samples()
        skipped = self.place.position * self.place.batch_size
        next(itertools.islice(samples, skipped, skipped), None)
        while batch := list(itertools.islice(samples, self.place.batch_size)):
            if self._drop_last and len(batch) < self.place.batch_size:
                return
            portion = self._portion(self.place.number, None, len(batch))
            yield self._collate([batch[place] for place in portion.places]), portion


class ShardedLoader(StreamLoader):
    """Over streams of which every worker has its own, of whatever length.

    Who has read all of its stream gets batches that count nothing until all have.
    """

    def __init__(self, *arguments: Any, **numbers: Any) -> None:
        super().__init__(*arguments, **numbers)
        self._num_taken = 0

    def __len__(self) -> int:
        """How long the others' streams are, this worker does not know."""
        return Loader.__len__(self)

    def _fetch(self) -> Generator[tuple[Any, Portion]]:
        if self.place.position == 0:
            self._num_taken = 0
        samples, last = self._samples(), list[Any]()
        next(itertools.islice(samples, self._num_taken, self._num_taken), None)
        team = self._host.workers.world
        while True:
            # At least one: nobody else can read what this worker would leave.
            share = max(
                1, self._sharing.shares(self.place.number, self.place.batch_size)[team.rank]
            )
            own = list(itertools.islice(samples, share))
            units = self._everybodys(len(own), is_over=len(own) < share)
            if units is None:
                return
            self._num_taken += len(own)
            last = own[: self._host.least] or last
            if not last:
                raise ValueError(
                    f"worker {team.rank} has an empty stream; give every worker at least one sample"
                )
            portion = self._portion_of(range(len(own)), units, batch_size=len(last))
            yield self._collate(own or last), portion

    def _everybodys(self, count: int, *, is_over: bool) -> list[int] | None:
        """What each worker has read for the next batch; None if the epoch is over."""
        team = self._host.workers.world
        own = torch.tensor([count, is_over], dtype=torch.float64, device=self._host.device)
        told = own.new_empty(2 * team.size)
        team.all_gather(told, own).wait()
        counts = [int(number) for number in told.tolist()[::2]]
        is_any_over = any(told.tolist()[1::2])
        if not any(counts) or (self._drop_last and is_any_over):
            return None
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Also how much of its stream this worker has read."""
        return {**super().state_dict(), "num_taken": self._num_taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader was: the rest of its epoch comes first.

        Args:
            state: What :meth:`state_dict` returned on this worker.

        """
        super().load_state_dict(state)
        self._num_taken = state["num_taken"]
