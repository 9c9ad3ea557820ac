"""A loader that gives each worker its share of a global batch."""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from paceline.train.loading.epoch import Epoch, Order
from paceline.train.loading.host import Host
from paceline.train.loading.place import Place
from paceline.train.loading.shares import share_samples
from paceline.train.loading.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Portion:
    """What one worker gets of a global batch."""

    places: Sequence[int]
    """In the global batch; without a share, those of a batch that counts nothing."""
    units: float
    """What it computes on: samples, or their sizes."""
    weight: float | None
    """What it counts beside an equal part of a full batch; None: all portions are that."""


class Loader(ABC):
    """What :meth:`paceline.Pace.loader` returns: iterate over it as over torch's ``DataLoader``.

    All workers take the same number of batches. A worker without a share of one gets a small batch
    that counts nothing, so that the loop runs the same everywhere. Every pass over the loader is an
    epoch.
    """

    def __init__(
        self, host: Host, sharing: Sharing, *, batch_size: int, identity: dict[str, Any]
    ) -> None:
        self.place = Place(identity=identity, batch_size=batch_size, sharing=sharing)
        """Where it is."""
        self._host = host
        self._sharing = sharing
        self._generator: torch.Generator | None = None
        self.is_filler = False
        """Whether the batch at hand counts nothing: its samples are another worker's too.

        Training does not depend on it. Leave such a batch out of what you count by yourself, as in
        an evaluation.
        """

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0; after a pass, and after a load, the next to train.

        A loader that is made anew for the same data goes on with the epoch after the last one.
        """
        return self.place.epoch

    def settle(self) -> None:
        """Wait for what the workers tell each other of their speeds. All workers call it."""
        self._sharing.settle()

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of the next full batch for each worker; with ``lengths``, in proportion."""
        return self._sharing.shares(self.place.number, self.place.batch_size)

    def __len__(self) -> int:
        """Batches of an epoch, where that is known beforehand."""
        raise TypeError("a data set that can only be iterated does not tell its length")

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, which says how samples are shuffled.

        Args:
            epoch: Counted from 0.

        """
        self.place.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        place, stopwatch = self.place, self._sharing.stopwatch
        own_pass = object()
        place.begin_pass()
        batches = self._fetch()
        self._sharing.begin_pass()
        try:
            while True:
                self._sharing.look(place.number)
                stopwatch.start()
                found = next(batches, None)
                if found is None:
                    break
                batch, portion = found
                stopwatch.got(portion.units)
                self._sharing.room.begin(portion.units)
                self._host.take(own_pass, portion.weight)
                self.is_filler = portion.weight == 0.0
                place.take_batch()
                yield batch
            place.end_pass()
        finally:
            self._sharing.end_pass()
            batches.close()
            self._host.leave(own_pass)

    def _with_own_generator(self, options: dict[str, Any]) -> dict[str, Any]:
        """Let torch's loader draw its seeds elsewhere than from the generator that training uses.

        It draws one at the beginning of each pass, and so once more in a run that was resumed.
        """
        if options.get("generator") is None:
            self._generator = torch.Generator()
            options = options | {"generator": self._generator}
        return options

    def _reseed(self) -> None:
        """A pass begins: its seeds follow from the loader's, the epoch and the worker."""
        if self._generator is not None:
            numbers = (self.place.identity["seed"], self.place.epoch, self._host.workers.world.rank)
            digest = hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest()
            self._generator.manual_seed(int.from_bytes(digest))

    @abstractmethod
    def _fetch(self) -> Generator[tuple[Any, Portion]]:
        """The batches of this worker, from the current position on."""

    def _portion(self, number: int, sizes: Sequence[int] | None, batch_size: int) -> Portion:
        """This worker's part of a global batch of so many samples."""
        rank, sharing = self._host.workers.world.rank, self._sharing
        if sizes is not None:
            by_worker = share_samples(sizes, sharing.speeds(number), limits=sharing.limits)
            units = [sum(sizes[place] for place in own) for own in by_worker]
            return self._portion_of(by_worker[rank], units, sizes=sizes)
        shares = sharing.shares(number, batch_size)
        start = sum(shares[:rank])
        return self._portion_of(range(start, start + shares[rank]), shares, batch_size=batch_size)

    def _portion_of(
        self,
        own: Sequence[int],
        units: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        batch_size: int = 0,
    ) -> Portion:
        rank = self._host.workers.world.rank
        weight = weight_of(units, rank, full=self.place.batch_size)
        if own:
            return Portion(own, units[rank], weight)
        count = min(self._host.least, batch_size if sizes is None else len(sizes))
        filler = range(count)
        return Portion(filler, count if sizes is None else sum(sizes[:count]), weight)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, and the workers' speeds."""
        return self.place.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader was: the rest of its epoch comes first.

        Args:
            state: What :meth:`state_dict` returned on this worker.

        """
        self.place.load_state_dict(state)


def weight_of(units: Sequence[int], rank: int, *, full: int) -> float | None:
    """What a worker's part counts beside an equal part of a full batch; None where all are that."""
    num_workers = len(units)
    if all(own * num_workers == full for own in units):
        return None
    return units[rank] * num_workers / full


class IndexedLoader(Loader):
    """Over a data set whose samples have indices."""

    def __init__(
        self,
        dataset: Dataset[Any],
        host: Host,
        sharing: Sharing,
        order: Order,
        *,
        batch_size: int,
        first: Epoch | None,
        identity: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        super().__init__(host, sharing, batch_size=batch_size, identity=identity)
        self._order = order
        self._current = None if first is None else (0, first)
        self._portions: deque[Portion] = deque()
        options = self._with_own_generator(options)
        self._data_loader = DataLoader(dataset, batch_sampler=_Drawn(self), **options)
        self._make_epoch()

    def __len__(self) -> int:
        """Batches of the current epoch, or where a sampler orders them, of the last known one."""
        # Workers may ask at different times, so nothing may be communicated here.
        if self._current is None or not self._order.is_sampled:
            return len(self._make_epoch())
        return len(self._current[1])

    def _make_epoch(self) -> Epoch:
        if self._current is None or self._current[0] != self.place.epoch:
            team, device = self._host.workers.world, self._host.device
            self._current = (self.place.epoch, self._order.make(self.place.epoch, team, device))
        return self._current[1]

    def draw(self) -> Iterator[list[int]]:
        """This worker's samples of every batch that is left, as they are asked for."""
        epoch, ahead = self._make_epoch(), self.place.number - self.place.position
        for place in range(self.place.position, len(epoch)):
            indices, sizes = epoch.batch(place), self._order.sizes
            own_sizes = None if sizes is None else [sizes[index] for index in indices]
            portion = self._portion(ahead + place, own_sizes, len(indices))
            self._portions.append(portion)
            yield [indices[each] for each in portion.places]

    def _fetch(self) -> Generator[tuple[Any, Portion]]:
        self._make_epoch()
        self._reseed()
        self._portions.clear()
        for batch in self._data_loader:
            yield batch, self._portions.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Also the order, where a sampler made it and could not make it again."""
        state = super().state_dict()
        if self._order.is_sampled and self.place.position and self._current is not None:
            epoch = self._current[1]
            state["order"] = {"samples": epoch.order, "ends": torch.tensor(epoch.ends)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader was: the rest of its epoch comes first.

        Args:
            state: What :meth:`state_dict` returned on this worker.

        """
        super().load_state_dict(state)
        order = state.get("order")
        if order is not None:
            epoch = Epoch(order["samples"].cpu(), order["ends"].tolist())
            self._current = (self.place.epoch, epoch)


class _Drawn:
    """What torch's loader takes for a batch sampler: it asks for batches as it fetches them."""

    def __init__(self, loader: IndexedLoader) -> None:
        # Weakly: the loader has torch's, which has this, and all end with the user's last use.
        self._loader = weakref.proxy(loader)

    def __iter__(self) -> Iterator[list[int]]:
        drawn: Iterator[list[int]] = self._loader.draw()
        return drawn

    def __len__(self) -> int:
        return len(self._loader)
