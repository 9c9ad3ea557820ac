"""One worker of a race: ``python -m paceline.race.racer TASK.json``.

Trains one entry, evaluates after every epoch without timing that, and writes what it measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from paceline.ending import end_quickly
from paceline.race.entry import Entry, Start, entry_maker
from paceline.race.task import NUM_WARM_UP_STEPS, RaceSettings, Task, count_steps
from paceline.race.traffic import bytes_sent_from_node
from paceline.steps.source import classification_loss
from paceline.teams import Workers, find_workers
from paceline.zoo import build_model, load_data


@dataclass(kw_only=True)
class TrainingRecord:
    """What a worker saw while training."""

    step_times_s: list[float] = field(default_factory=list)
    waiting_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    time_to_target_s: float | None = None


def main() -> None:
    """Run one task as one of its workers."""
    end_quickly()
    task = Task.from_json(Path(sys.argv[1]).read_text())
    settings = task.settings
    workers = find_workers()
    torch.manual_seed(settings.seed)
    model = build_model(settings.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9)
    num_examples = len(load_data(settings.data, seed=settings.seed).train)
    start = Start(
        model=model,
        optimizer=optimizer,
        workers=workers,
        num_steps=count_steps(settings, num_examples, workers.world.size),
        options=settings.options.get(task.entry, {}),
    )
    entry = entry_maker(task.entry)(start)
    dist.barrier()
    sent_before = bytes_sent_from_node(workers.node_index)
    record = train(task, model, entry, workers)
    sent = bytes_sent_from_node(workers.node_index) - sent_before
    result = summarise(task, record, sent, workers)
    if workers.world.rank == 0:
        Path(task.result_file).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def train(
    task: Task,
    model: nn.Module,
    entry: Entry,
    workers: Workers,
) -> TrainingRecord:
    """Train for the task's epochs; only training steps are timed."""
    settings = task.settings
    data = load_data(settings.data, seed=settings.seed)
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
            record.step_times_s.append(time.monotonic() - start)
            record.waiting_s.append(entry.waiting_s - waited)
            record.losses.append(loss.item())
            report_progress(task, record, workers)
        entry.after_epoch(sum(record.losses[epoch_start:]) / (len(record.losses) - epoch_start))
        if epoch == settings.epochs - 1:
            start = time.monotonic()
            entry.finish()
            record.step_times_s[-1] += time.monotonic() - start
        evaluate_epoch(settings, model, data.test, record)
    return record


def share_of_epoch(
    dataset: TensorDataset, settings: RaceSettings, epoch: int, workers: Workers
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This worker's batches of an epoch: the same shuffle everywhere, rank after rank."""
    inputs, targets = dataset.tensors
    order = torch.randperm(
        len(inputs), generator=torch.Generator().manual_seed(settings.seed * 1_000 + epoch)
    )
    together = settings.batch * workers.world.size
    for start in range(0, len(inputs) - together + 1, together):
        own = start + workers.world.rank * settings.batch
        chosen = order[own : own + settings.batch]
        yield inputs[chosen], targets[chosen]


def evaluate_epoch(
    settings: RaceSettings, model: nn.Module, test: TensorDataset, record: TrainingRecord
) -> None:
    """Note the accuracy of this worker's model, and when it first reached the target."""
    record.accuracies.append(accuracy_of(model, test))
    if record.time_to_target_s is None and record.accuracies[-1] >= settings.target:
        record.time_to_target_s = sum(record.step_times_s)
    dist.barrier()


def accuracy_of(model: nn.Module, test: TensorDataset) -> float:
    """The share of correct answers on the test set."""
    inputs, targets = test.tensors
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(-1) for part in torch.split(inputs, 256)])
    model.train()
    return float((answers == targets).double().mean())


def report_progress(task: Task, record: TrainingRecord, workers: Workers) -> None:
    """Tell the race how far this entry is: a small file, replaced as a whole."""
    if workers.world.rank != 0:
        return
    news = {
        "steps": len(record.step_times_s),
        "loss": record.losses[-1],
        "accuracy": record.accuracies[-1] if record.accuracies else None,
    }
    partial = Path(task.progress_file + ".partial")
    partial.write_text(json.dumps(news))
    partial.replace(task.progress_file)


def summarise(
    task: Task, record: TrainingRecord, sent_bytes: int, workers: Workers
) -> dict[str, object]:
    """One result for all workers: the slowest worker's times, rank 0's accuracy."""
    timed = slice(NUM_WARM_UP_STEPS, None)
    times, waits = record.step_times_s[timed], record.waiting_s[timed]
    step_s = workers.world.agree(sum(times) / len(times), "max")
    waiting_share = workers.world.agree(sum(waits) / sum(times), "mean")
    is_first_of_node = workers.node.rank == 0
    bytes_between_nodes = workers.world.agree(sent_bytes if is_first_of_node else 0.0, "sum")
    return {
        "name": task.entry,
        "step_s": step_s,
        "waiting_share": waiting_share,
        "bytes_between_nodes": round(bytes_between_nodes),
        "accuracy": record.accuracies[-1],
        "time_to_target_s": record.time_to_target_s,
        "num_steps": len(record.step_times_s),
        "training_s": sum(record.step_times_s),
        "accuracies": record.accuracies,
        "final_loss": record.losses[-1],
        "samples_per_s": task.settings.batch * workers.world.size / step_s,
    }


if __name__ == "__main__":
    main()
