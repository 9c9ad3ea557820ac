"""Every strategy, on real workers, against a reference that plays them all in one process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import reference
import reference_delayed
import workloads
from jobs import make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import attach

NUM_STEPS = 24
LAYOUTS = [(1,), (2,), (1, 1), (2, 2), (2, 2, 2), (2, 1), (1, 3)]
# Flat for long, with a recovery in between: B goes 4, 2, 1, 8 within the run's steps.
REPORTS = dict.fromkeys(range(5, 24), 1.0) | {9: 0.5}


@dataclass(frozen=True)
class Training:
    """A strategy with options, and the reference's rule for it."""

    strategy: str
    rule: type[reference.Rule]
    options: dict[str, Any] = field(default_factory=dict)
    real_only: dict[str, Any] = field(default_factory=dict)
    """Options that change how something is done, and not what."""
    reports: dict[int, float] = field(default_factory=dict)


# Chunks of a few values: every exchange but the smallest model's travels in many parts.
CHUNKS = {"chunk_bytes": 52}
OUTER = {"outer_lr": 0.6, "outer_momentum": 0.8}
WAIT = CHUNKS | {"late": "wait"}
TRAININGS = {
    "sync": Training("sync", reference.Sync),
    "sync-hierarchical": Training("sync-hierarchical", reference.Sync),
    "local-sgd": Training("local-sgd", reference.LocalSgd, {"period": 5}, CHUNKS),
    "post-local-sgd": Training(
        "post-local-sgd", reference.PostLocalSgd, {"period": 4, "sync_steps": 9}, CHUNKS
    ),
    "diloco": Training("diloco", reference.Diloco, {"period": 6, **OUTER}, CHUNKS),
    "streaming": Training(
        "streaming-diloco",
        reference_delayed.StreamingDiloco,
        {"period": 7, "fragments": 3, "delay": 2, "keep": 0.3, **OUTER},
        CHUNKS,
    ),
    "streaming-blocking": Training(
        "streaming-diloco",
        reference_delayed.StreamingDiloco,
        {"period": 4, "fragments": 1, "delay": 0, "keep": 0.5, **OUTER},
        CHUNKS,
    ),
    "streaming-overlapping": Training(
        "streaming-diloco",
        reference_delayed.StreamingDiloco,
        {"period": 3, "fragments": 2, "delay": 3, "keep": 0.5, **OUTER},
        CHUNKS,
    ),
    "daso-stale": Training(
        "daso",
        reference_delayed.Daso,
        {"period": 4, "delay": 2, "merge": "stale", "total_steps": NUM_STEPS},
        WAIT,
    ),
    "daso-corrected": Training(
        "daso",
        reference_delayed.Daso,
        {"period": 3, "delay": 3, "merge": "corrected", "warmup_steps": 2},
        WAIT,
    ),
    "daso-plateau-stale": Training(
        "daso",
        reference_delayed.Daso,
        {"period": 4, "delay": 1, "merge": "stale", "warmup_steps": 0, "total_steps": NUM_STEPS},
        WAIT,
        REPORTS,
    ),
    "daso-plateau-corrected": Training(
        "daso",
        reference_delayed.Daso,
        {"period": 4, "delay": 4, "merge": "corrected", "max_period": 5, "cooldown_steps": 0},
        WAIT,
        REPORTS,
    ),
}
TRAININGS |= {
    "slowmo": Training(
        "slowmo", reference.SlowMo, {"period": 5, "slow_lr": 0.8, "slow_momentum": 0.6}, CHUNKS
    ),
    "co2": Training(
        "co2",
        reference.Co2,
        {"period": 4, "outer_lr": 0.7, "outer_momentum": 0.3, "max_norm": 0.2},
    ),
    "gossip": Training("gossip", reference.Gossip, {"period": 3, "seed": 5}),
    "demo": Training("demo", reference.Demo, {"keep": 3, "chunk": 8, "decay": 0.9}),
}
LATER = ("slowmo", "co2", "gossip", "demo")
"""Strategies that share most of their code with others, and are tried on fewer models."""
# Unequal nodes that count alike, in a layout of their own.
TRAININGS |= {
    f"{name}-by-nodes": replace(
        TRAININGS[name], options=TRAININGS[name].options | {"weighting": "nodes"}
    )
    for name in ("local-sgd", "streaming", "daso-stale", "daso-corrected")
}
MODELS = ["plain", "frozen", "groups", "shared", "single", "normed"]
Case = tuple[str, str, str]


def cases_of(nodes: tuple[int, ...]) -> list[Case]:
    """Training, model and optimizer: on 2x2 workers nearly every pair of the first two."""
    cases = []
    for i, (training_name, training) in enumerate(TRAININGS.items()):
        for j, model in enumerate(MODELS):
            # Shifted from layout to layout, so that all pairs occur on some unequal nodes too.
            is_chosen = (i + j + LAYOUTS.index(nodes)) % 3 == 0
            is_chosen |= nodes == (2, 2) and (training_name not in LATER or j % 2 == 0)
            if training_name.endswith("-by-nodes"):
                is_chosen = nodes == (2, 1) and model in ("plain", "normed")
            is_possible = model != "single" or training.options.get("fragments", 1) == 1
            if is_chosen and is_possible:
                cases.append((training_name, model, ("momentum", "adamw")[(i + j // 3) % 2]))
    if nodes == (2, 2):
        # Several buckets of gradients.
        cases += [(name, "wide", "momentum") for name in ("sync", "sync-hierarchical")]
    return cases


def train_all(workers: Workers, cases: list[Case]) -> list[list[torch.Tensor]]:
    """This worker's states after every step and after the end, of every case."""
    return [_train(workers, *case) for case in cases]


def _train(
    workers: Workers, training_name: str, model_kind: str, optimizer_kind: str
) -> list[torch.Tensor]:
    training = TRAININGS[training_name]
    rank, num_workers = workers.world.rank, workers.world.size
    # Another start on each worker: attaching makes them equal.
    model, optimizer = workloads.build(model_kind, optimizer_kind, seed=rank)
    options = training.options | training.real_only
    seen = []
    with attach(model, optimizer, training.strategy, workers=workers, **options) as pace:
        for step in range(1, NUM_STEPS + 1):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, rank))
            optimizer.step()
            if step in training.reports:
                # Different on each worker, the same on average.
                pace.report(training.reports[step] + rank - (num_workers - 1) / 2)
            seen.append(workloads.flat_state(model))
    seen.append(workloads.flat_state(model))
    return seen


@functools.cache
def trained(nodes: tuple[int, ...]) -> dict[Case, list[list[torch.Tensor]]]:
    """For every case, each worker's states. One job for all of them is much faster than many."""
    cases = cases_of(nodes)
    by_worker = run_job(train_all, cases, nodes=nodes)
    return {case: [states[i] for states in by_worker] for i, case in enumerate(cases)}


def expected(nodes: tuple[int, ...], case: Case) -> list[list[torch.Tensor]]:
    make_reproducible()
    training_name, model_kind, optimizer_kind = case
    training = TRAININGS[training_name]
    game = reference.Game(nodes, lambda: workloads.build(model_kind, optimizer_kind))
    return reference.play(
        training.rule(game, **training.options),
        workloads.batch_loss,
        NUM_STEPS,
        observe=workloads.flat_state,
        reports=training.reports,
    )


@pytest.mark.parametrize(
    ("nodes", "case"),
    [(nodes, case) for nodes in LAYOUTS for case in cases_of(nodes)],
    ids=lambda value: "-".join(str(part) for part in value),
)
def test_equals_the_reference_at_every_step(nodes: tuple[int, ...], case: Case) -> None:
    by_step = expected(nodes, case)
    for rank, states in enumerate(trained(nodes)[case]):
        for step, state in enumerate(states):
            wrong = ~torch.isclose(state, by_step[step][rank], rtol=1e-6, atol=1e-6)
            assert not wrong.any(), f"worker {rank}, step {step + 1}: {wrong.nonzero().flatten()}"


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
def test_all_workers_end_equal_to_the_bit(nodes: tuple[int, ...]) -> None:
    for case, by_worker in trained(nodes).items():
        for states in by_worker[1:]:
            assert torch.equal(states[-1], by_worker[0][-1]), case
