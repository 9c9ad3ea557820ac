"""Work beside the training: in order, and with its errors."""

from __future__ import annotations

import threading

import pytest
import torch

from jobs import DEVICE, run_job
from paceline.teams import Workers


def work_in_order(workers: Workers) -> list[int]:
    """What was asked for first is done first, whatever the caller does meanwhile."""
    done: list[int] = []
    opened = threading.Event()

    def wait_and_note() -> None:
        opened.wait()
        done.append(1)

    first = workers.background.run(wait_and_note, device=DEVICE)
    second = workers.background.run(lambda: done.append(2), device=DEVICE)
    assert not second.done()
    assert not first.done()
    opened.set()
    second.wait()
    assert second.done()
    first.wait()
    second.wait()
    workers.background.close()
    return done


def test_work_is_done_in_order() -> None:
    assert run_job(work_in_order, nodes=(1,)) == [[1, 2]]


def fail(workers: Workers) -> bool:
    def broken() -> None:
        raise KeyError("in the background")

    pending = workers.background.run(broken, device=DEVICE)
    with pytest.raises(KeyError, match="in the background"):
        pending.wait()
    # The next one is not concerned, and nothing in the background records a graph.
    graphs = []
    source = torch.ones(1, device=DEVICE, requires_grad=True)
    workers.background.run(lambda: graphs.append((source * 2).requires_grad), device=DEVICE).wait()
    return graphs[0]


def test_errors_are_raised_where_the_result_is_needed() -> None:
    assert run_job(fail, nodes=(1,)) == [False]
