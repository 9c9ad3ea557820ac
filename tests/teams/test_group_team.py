"""A team's operations over real Gloo groups."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs import DEVICE, run_job
from paceline.teams import Op, Pending, Team, TeamError, Workers
from paceline.teams.workers import form_workers


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def finished(pending: Pending, result: torch.Tensor) -> list[float]:
    pending.wait()
    pending.wait()  # costs nothing, and breaks nothing
    assert pending.done()
    values: list[float] = result.tolist()
    return values


def reduce_all(workers: Workers, op: Op) -> list[list[float]]:
    """On all three teams; in single and double precision."""
    results = []
    for team in (workers.world, workers.node, workers.across):
        for dtype in (torch.float32, torch.float64):
            value = tensor(workers.world.rank + 1.0, -workers.world.rank, dtype=dtype)
            results.append(finished(team.all_reduce(value, op), value))
    return results


# Nodes of two and one: world {0, 1, 2}, nodes {0, 1} and {2}, columns {0, 2} and {1}.
TEAMS_OF = {
    0: ([0, 1, 2], [0, 1], [0, 2]),
    1: ([0, 1, 2], [0, 1], [1]),
    2: ([0, 1, 2], [2], [0, 2]),
}


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_all_reduce(op: Op) -> None:
    for rank, results in enumerate(run_job(reduce_all, op, nodes=(2, 1))):
        expected = []
        for members in TEAMS_OF[rank]:
            columns = zip(*([member + 1.0, -float(member)] for member in members), strict=True)
            combine: dict[str, Any] = {
                "sum": sum,
                "mean": lambda values: sum(values) / len(values),
                "max": max,
                "min": min,
            }
            expected += [[combine[op](column) for column in columns]] * 2
        for result, wanted in zip(results, expected, strict=True):
            assert result == pytest.approx(wanted)


def move(workers: Workers) -> dict[str, Any]:
    """Every operation that moves values without combining them, among four."""
    world, rank = workers.world, workers.world.rank
    results: dict[str, Any] = {"size": world.size, "rank": world.rank}
    assert not world.keeps_order  # NCCL's would

    value = tensor(10.0 + rank, 20.0 + rank)
    results["broadcast"] = finished(world.broadcast(value, 2), value)

    gathered = torch.zeros(8, device=DEVICE)
    results["all_gather"] = finished(world.all_gather(gathered, tensor(rank, rank + 0.5)), gathered)

    for op in ("sum", "mean"):
        share = torch.zeros(2, device=DEVICE)
        whole = torch.arange(8.0, device=DEVICE) * (rank + 1)
        results[f"reduce_scatter {op}"] = finished(
            world.reduce_scatter(share, whole, "sum" if op == "sum" else "mean"), share
        )

    # A ring: everybody sends to the next, and receives from the one before.
    received = torch.zeros(1, device=DEVICE)
    sending = world.send(tensor(100.0 + rank), (rank + 1) % 4)
    results["receive"] = finished(world.receive(received, (rank - 1) % 4), received)
    sending.wait()

    numbers = torch.tensor([rank, 7], dtype=torch.int64, device=DEVICE)
    results["integers"] = finished(world.all_reduce(numbers, "sum"), numbers)
    return results


def test_moving_values() -> None:
    for rank, results in enumerate(run_job(move, nodes=(2, 2))):
        assert results == {
            "size": 4,
            "rank": rank,
            "broadcast": [12.0, 22.0],
            "all_gather": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
            "reduce_scatter sum": [10.0 * 2 * rank, 10.0 * (2 * rank + 1)],
            "reduce_scatter mean": [2.5 * 2 * rank, 2.5 * (2 * rank + 1)],
            "receive": [100.0 + (rank - 1) % 4],
            "integers": [6, 28],
        }


def agree_on(workers: Workers) -> list[float]:
    rank = workers.world.rank
    operations: list[Op] = ["sum", "mean", "max", "min"]
    # Beyond single precision: a count of steps, or a time.
    return [
        *(workers.world.agree(2**40 + rank, op) for op in operations),
        workers.node.agree(rank),
        workers.across.agree(rank),
    ]


def test_agree() -> None:
    for rank, results in enumerate(run_job(agree_on, nodes=(2, 1))):
        _, node, across = TEAMS_OF[rank]
        assert results == [
            3 * 2**40 + 3,
            pytest.approx(2**40 + 1, rel=1e-15),
            2**40 + 2,
            2**40,
            sum(node) / len(node),
            sum(across) / len(across),
        ]


def wait_for_the_slow(workers: Workers, folder: str) -> list[bool]:
    """Whether what a slow worker did before a barrier was seen after it, on each team."""
    seen = []
    teams = {"world": workers.world, "node": workers.node, "across": workers.across}
    for name, team in teams.items():
        column = workers.node.rank if name == "across" else workers.node_index
        mark = Path(folder, f"{name}-{'all' if name == 'world' else column}")
        if team.rank == team.size - 1:
            time.sleep(0.3)
            mark.touch()
        team.barrier()
        seen.append(mark.exists())
        workers.world.barrier()
    return seen


def test_nobody_leaves_a_barrier_before_the_last_has_come(tmp_path: Path) -> None:
    for seen in run_job(wait_for_the_slow, str(tmp_path), nodes=(2, 1)):
        assert seen == [True, True, True]


def miss_a_barrier(_workers: Workers) -> str:
    workers = form_workers([[0], [1]], timeout_s=2.0)
    if workers.world.rank == 1:
        return ""
    with pytest.raises(TeamError) as problem:
        workers.world.barrier()
    return str(problem.value)


def test_a_barrier_that_nobody_else_comes_to_says_so() -> None:
    message, _ = run_job(miss_a_barrier, nodes=(1, 1))
    assert "barrier over the team world" in message
    assert "worker 1" in message


def hand_over(workers: Workers) -> list[int]:
    """What each operation adds to the count, for one kibibyte."""
    team: Team = workers.world
    counts: list[int] = []

    def count(pending: Pending) -> None:
        pending.wait()
        counts.append(team.bytes_handed - sum(counts))

    def kibibyte() -> torch.Tensor:
        return torch.zeros(256, device=DEVICE)

    counts.append(team.bytes_handed)
    count(team.all_reduce(kibibyte(), "sum"))
    count(team.broadcast(kibibyte(), 0))
    count(team.all_gather(torch.zeros(512, device=DEVICE), kibibyte()))
    count(team.reduce_scatter(torch.zeros(128, device=DEVICE), kibibyte()))
    receiving = team.receive(kibibyte(), 1 - team.rank)
    count(team.send(kibibyte(), 1 - team.rank))
    count(receiving)
    return counts


def test_bytes_handed_counts_what_a_worker_gives() -> None:
    for counts in run_job(hand_over, nodes=(1, 1)):
        assert counts == [0, 1024, 1024, 1024, 1024, 1024, 0]


def gather_words(workers: Workers) -> list[list[bytes]]:
    rank = workers.world.rank
    word = b"\0x" * rank  # nothing from the first; zero bytes are not padding
    return [workers.world.gather(word), workers.node.gather(word), workers.across.gather(b"")]


def test_gather_gives_everybodys_bytes_by_rank() -> None:
    words = [b"\0x" * rank for rank in range(4)]
    for rank, (world, node, across) in enumerate(run_job(gather_words, nodes=(2, 2))):
        assert world == words
        assert node == (words[:2] if rank < 2 else words[2:])
        assert across == [b"", b""]
