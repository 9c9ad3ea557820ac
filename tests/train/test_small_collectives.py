"""How many messages a training sends beside its gradients: few, however many tensors there are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.traces.traced_team import traced_workers
from paceline.train import attach

NUM_NORMS = 20
Told = tuple[str, str, int]


@dataclass
class Counting:
    """An observer that keeps what it hears."""

    is_on: bool = True
    told: list[Told] = field(default_factory=list)

    def now(self) -> float:
        return time.perf_counter()

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        self.told.append((team, kind, num_bytes))

    def background_work(self, start_s: float, end_s: float) -> None: ...

    def waited(self, start_s: float, end_s: float) -> None: ...

    def take(self) -> list[Told]:
        taken, self.told = self.told, []
        return taken


def count_messages(workers: Workers, strategy: str) -> tuple[list[Told], list[Told]]:
    """The collectives at the start, and at the end, of training a network of many norms."""
    counting = Counting()
    model = nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(NUM_NORMS))).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    pace = attach(model, optimizer, strategy, workers=traced_workers(workers, counting))
    at_start = counting.take()
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(4, 3, device=DEVICE)).sum())
        optimizer.step()
    counting.take()
    pace.finish()
    at_end = counting.take()
    pace.detach()
    return at_start, at_end


@pytest.mark.parametrize("strategy", ["sync", "local-sgd"])
def test_start_and_end_send_few_messages(strategy: str) -> None:
    num_values = 3 * NUM_NORMS
    for at_start, at_end in run_job(count_messages, strategy, nodes=(1, 1)):
        assert sorted(at_start) == [
            ("world", "all_reduce", 2 * 8),  # whether all attach the same
            ("world", "all_reduce", 2 * 8),  # whether all optimizers keep the same
            ("world", "broadcast", 8 * NUM_NORMS),  # counters
            ("world", "broadcast", 4 * 4 * num_values),  # parameters and statistics
        ]
        assert [told for told in at_end if told[0] == "world"] == [
            ("world", "all_reduce", 2 * 4 * 2 * num_values),  # statistics, and which are finite
            ("world", "broadcast", 8 * NUM_NORMS),
            ("world", "all_reduce", 2 * 8 * 5 * NUM_NORMS),  # whether all are equal now
        ]


def reduce_one_bucket(workers: Workers) -> list[Told]:
    counting = Counting()
    # Eight values, two flags that they have gradients, and one that there is data: eleven.
    model = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    workers = traced_workers(workers, counting)
    with attach(model, optimizer, "sync-hierarchical", workers=workers):
        counting.take()
        torch.autograd.backward(model(torch.ones(1, 3, device=DEVICE)).sum())
        optimizer.step()
        return counting.take()


def test_a_hierarchical_average_sends_shares_across() -> None:
    for told in run_job(reduce_one_bucket, nodes=(2, 2)):
        assert told == [
            ("node", "reduce_scatter", 4 * 12),
            ("across", "all_reduce", 4 * 6),
            ("node", "all_gather", 4 * 12),
        ]


def test_unequal_nodes_send_all_of_it_across_once() -> None:
    first, second, alone = run_job(reduce_one_bucket, nodes=(2, 1))
    in_node = [("node", "all_reduce", 4 * 11), ("node", "broadcast", 4 * 11)]
    assert first == alone == [in_node[0], ("across", "all_reduce", 4 * 11), in_node[1]]
    assert second == in_node
