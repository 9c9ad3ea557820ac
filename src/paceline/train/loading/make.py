"""Make the loader that fits a data set, after all workers have agreed on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from paceline.train.loading.epoch import Order
from paceline.train.loading.host import Host
from paceline.train.loading.loader import IndexedLoader, Loader
from paceline.train.loading.sharing import ShareMode, Sharing
from paceline.train.loading.stream import ShardedLoader, StreamLoader


def make_loader(
    host: Host,
    dataset: Any,
    *,
    batch_size: int | None,
    shuffle: bool,
    seed: int,
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    drop_last: bool,
    lengths: Sequence[int] | None,
    sharded: bool,
    shares: ShareMode | Sequence[float],
    max_batch: int | None,
    options: dict[str, Any],
) -> Loader:
    """What :meth:`paceline.Pace.loader` returns; its arguments are explained there."""
    is_stream = isinstance(dataset, IterableDataset)
    _check_batches(batch_size, shuffle, sampler, batch_sampler, drop_last, lengths)
    if is_stream and (shuffle or sampler or batch_sampler or lengths):
        raise ValueError(
            "a data set that can only be iterated is read in its own order: leave shuffle=, "
            "sampler=, batch_sampler= and lengths= out"
        )
    if sharded and not is_stream:
        raise ValueError("sharded=True is for a data set that can only be iterated")
    if options.get("in_order") is False:
        raise ValueError("in_order=False would mix up the workers' batches: leave it out")
    if max_batch is not None and max_batch < 0:
        raise ValueError(f"max_batch={max_batch} must not be negative")
    sizes = None if lengths is None else [int(length) for length in lengths]
    num_samples = 0 if is_stream else len(dataset)
    if sizes is not None and (len(sizes) != num_samples or min(sizes, default=1) < 1):
        raise ValueError(
            f"lengths= must have a positive number for each of the {num_samples} samples"
        )
    identity = {"batch_size": batch_size, "num_samples": num_samples, "seed": seed}
    identity |= {"shuffle": shuffle, "drop_last": drop_last, "by_lengths": lengths is not None}
    if sharded:  # a stream belongs to its worker
        identity["workers"] = host.workers.world.size
    limits = _agreed(host, identity | {"shares": _told(shares)}, max_batch)
    order = Order(
        num_samples=num_samples,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        sizes=sizes,
        sampler=sampler,
        batch_sampler=batch_sampler,
    )
    first = None
    if batch_size is None:
        first = order.make(0, host.workers.world, host.device)
        samples = first.batch(0) if len(first) else [0]
        # Other batches are measured by the first one. Nothing depends on how large it is.
        batch_size = len(samples) if sizes is None else sum(sizes[index] for index in samples)
    num_ahead = 0 if is_stream else _num_ahead(options)
    sharing = Sharing(
        host,
        batch_size=batch_size,
        limits=limits,
        speeds=_speeds(shares, host.workers.world.size),
        least=host.least if sizes is None else 1,
        num_ahead=num_ahead,
    )
    sharing.shares(0, batch_size)  # limits that are too tight are refused here
    if not is_stream:
        return IndexedLoader(
            dataset,
            host,
            sharing,
            order,
            batch_size=batch_size,
            first=first,
            identity=identity,
            options=options,
        )
    kind = ShardedLoader if sharded else StreamLoader
    return kind(
        dataset,
        host,
        sharing,
        batch_size=batch_size,
        drop_last=drop_last,
        identity=identity,
        options=options,
    )


def _check_batches(
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    drop_last: bool,
    lengths: Sequence[int] | None,
) -> None:
    if batch_sampler is not None:
        if batch_size is not None or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler= says all about batches: leave batch_size=, shuffle=, sampler= and "
                "drop_last= out"
            )
    elif batch_size is None or batch_size < 1:
        raise ValueError(
            f"batch_size={batch_size} must be the size of the global batch, the one of all workers "
            "together" + (", in tokens" if lengths is not None else "")
        )
    if sampler is not None and shuffle:
        raise ValueError("sampler= says the order: leave shuffle= out")
    for name, once in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if isinstance(once, Iterator):
            raise ValueError(
                f"{name}= can be iterated only once, and every epoch iterates it: give an object "
                "that can be iterated again, such as a list or a Sampler"
            )
    for given in (sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(given, DistributedSampler):
            raise ValueError(
                "a DistributedSampler gives each worker a fixed part, and pace.loader shares the "
                "batches itself: give it a sampler over all samples, or shuffle=True"
            )


def _told(shares: ShareMode | Sequence[float]) -> str | list[float]:
    return shares if isinstance(shares, str) else [float(speed) for speed in shares]


def _speeds(shares: ShareMode | Sequence[float], num_workers: int) -> Sequence[float] | None:
    if isinstance(shares, str):
        if shares not in ("measured", "equal"):
            raise ValueError(
                f"shares={shares!r} is not known; use 'measured', 'equal', or a number for each "
                "worker"
            )
        return [1.0] * num_workers if shares == "equal" else None
    speeds = [float(speed) for speed in shares]
    if len(speeds) != num_workers or min(speeds) < 0 or not sum(speeds):
        raise ValueError(
            f"shares={list(shares)} must have a number for each of the {num_workers} workers, none "
            "negative and not all 0"
        )
    return speeds


def _agreed(host: Host, asked: dict[str, Any], max_batch: int | None) -> list[int | None]:
    """The limits of all workers, who must ask for the same loader."""
    told = host.workers.world.gather(json.dumps([asked, max_batch]).encode())
    answers = [json.loads(data) for data in told]
    for rank, (other, _) in enumerate(answers):
        for name, value in answers[0][0].items():
            if other[name] != value:
                raise ValueError(
                    f"worker {rank} makes its loader with {name}={other[name]}, and worker 0 with "
                    f"{name}={value}; all workers must give the same"
                )
    return [limit for _, limit in answers]


def _num_ahead(options: dict[str, Any]) -> int:
    """How many batches torch's loader asks for before they are needed."""
    factor = options.get("prefetch_factor")
    return int(options.get("num_workers", 0)) * (2 if factor is None else int(factor))
