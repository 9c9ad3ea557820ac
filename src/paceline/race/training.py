"""Trains one entry as one of its workers, and says what that took.

Evaluates after every epoch, without timing that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from paceline.race.entry import Entry, Start, entry_maker
from paceline.race.task import NUM_WARM_UP_STEPS, RaceSettings
from paceline.race.traffic import bytes_sent_from_node
from paceline.steps.source import classification_loss
from paceline.teams import Workers
from paceline.teams.backend import device_in_use, library_in_use
from paceline.zoo import build_model
from paceline.zoo.data import Data


@dataclass(kw_only=True)
class TrainingRecord:
    """What a worker saw while training."""

    step_times_s: list[float] = field(default_factory=list)
    waiting_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    accuracy_times_s: list[float] = field(default_factory=list)
    """The training time until each accuracy."""
    losses: list[float] = field(default_factory=list)
    sent_bytes: int | None = None
    """What this worker's node sent; None if it could not be counted."""

    def news(self) -> dict[str, Any]:
        """How far this worker is, for people who wait."""
        timed = self.step_times_s[NUM_WARM_UP_STEPS:]
        return {
            "steps": len(self.step_times_s),
            "step_s": sum(timed) / len(timed) if timed else None,
            "loss": self.losses[-1],
            "accuracy": self.accuracies[-1] if self.accuracies else None,
        }


def train_entry(
    name: str,
    settings: RaceSettings,
    data: Data,
    num_steps: int,
    workers: Workers,
    on_step: Callable[[TrainingRecord], None],
) -> dict[str, Any]:
    """Train one entry from fresh weights. All workers call it, all get the result.

    Args:
        name: The entry.
        settings: What it trains.
        data: What it trains on.
        num_steps: The steps of the whole run.
        workers: The teams of this job.
        on_step: Called after every step, and at the end.
    """
    torch.manual_seed(settings.seed)
    model = build_model(settings.model).to(device_in_use())
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9)
    start = Start(
        model=model,
        optimizer=optimizer,
        workers=workers,
        num_steps=num_steps,
        options=settings.options.get(name, {}),
    )
    entry = entry_maker(name)(start)
    dist.barrier()
    sent_before = _sent_bytes(workers)
    record = _train(settings, data, model, entry, workers, on_step)
    sent_after = _sent_bytes(workers)
    if sent_before is not None and sent_after is not None:
        record.sent_bytes = sent_after - sent_before
    entry.close()
    on_step(record)
    return summarise(name, settings, record, workers)


def _sent_bytes(workers: Workers) -> int | None:
    """What this node has sent to others so far; NCCL's ways pass by an interface's counters."""
    if workers.num_nodes == 1:
        return 0
    return None if library_in_use() == "nccl" else bytes_sent_from_node(workers.node_index)


def _train(
    settings: RaceSettings,
    data: Data,
    model: nn.Module,
    entry: Entry,
    workers: Workers,
    on_step: Callable[[TrainingRecord], None],
) -> TrainingRecord:
    """Train for the race's epochs; only training steps are timed."""
    record = TrainingRecord()
    for epoch in range(settings.epochs):
        epoch_start = len(record.losses)
        for inputs, targets in share_of_epoch(data.train, settings, epoch, workers):
            start, waited = time.monotonic(), entry.waiting_s
            entry.optimizer.zero_grad()
            loss = classification_loss(entry.network(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            entry.after_backward()
            entry.optimizer.step()
            entry.after_step()
            if inputs.is_cuda:
                torch.cuda.synchronize()
            record.step_times_s.append(time.monotonic() - start)
            record.waiting_s.append(entry.waiting_s - waited)
            record.losses.append(loss.item())
            on_step(record)
        entry.after_epoch(sum(record.losses[epoch_start:]) / (len(record.losses) - epoch_start))
        if epoch == settings.epochs - 1:
            start = time.monotonic()
            entry.finish()
            record.step_times_s[-1] += time.monotonic() - start
        record.accuracies.append(accuracy_of(model, data.test))
        record.accuracy_times_s.append(sum(record.step_times_s))
        dist.barrier()
    return record


def share_of_epoch(
    dataset: TensorDataset, settings: RaceSettings, epoch: int, workers: Workers
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This worker's batches of an epoch: the same shuffle everywhere, rank after rank."""
    inputs, targets = dataset.tensors
    device = device_in_use()
    order = torch.randperm(
        len(inputs), generator=torch.Generator().manual_seed(settings.seed * 1_000 + epoch)
    )
    together = settings.batch * workers.world.size
    for start in range(0, len(inputs) - together + 1, together):
        own = start + workers.world.rank * settings.batch
        chosen = order[own : own + settings.batch]
        yield inputs[chosen].to(device), targets[chosen].to(device)


def accuracy_of(model: nn.Module, test: TensorDataset) -> float:
    """The share of correct answers on the test set."""
    inputs, targets = test.tensors
    device = device_in_use()
    model.eval()
    with torch.no_grad():
        parts = [model(part.to(device)).argmax(-1).cpu() for part in torch.split(inputs, 256)]
    model.train()
    return float((torch.cat(parts) == targets).double().mean())


def summarise(
    name: str, settings: RaceSettings, record: TrainingRecord, workers: Workers
) -> dict[str, Any]:
    """One result for all workers: the slowest worker's times, rank 0's accuracy."""
    timed = slice(NUM_WARM_UP_STEPS, None)
    times, waits = record.step_times_s[timed], record.waiting_s[timed]
    step_s = workers.world.agree(sum(times) / len(times), "max")
    waiting_share = workers.world.agree(sum(waits) / sum(times), "mean")
    # One worker of each node speaks for it. A node that could not count makes the sum no number.
    own_bytes = float("nan") if record.sent_bytes is None else float(record.sent_bytes)
    sent = workers.world.agree(own_bytes if workers.node.rank == 0 else 0.0, "sum")
    reached = [
        seconds
        for seconds, accuracy in zip(record.accuracy_times_s, record.accuracies, strict=True)
        if accuracy >= settings.target
    ]
    return {
        "name": name,
        "step_s": step_s,
        "waiting_share": waiting_share,
        "bytes_between_nodes": None if sent != sent else round(sent),
        "accuracy": record.accuracies[-1],
        "time_to_target_s": reached[0] if reached else None,
        "num_steps": len(record.step_times_s),
        "training_s": sum(record.step_times_s),
        "accuracies": record.accuracies,
        "accuracy_times_s": record.accuracy_times_s,
        "final_loss": record.losses[-1],
        "samples_per_s": settings.batch * workers.world.size / step_s,
    }
