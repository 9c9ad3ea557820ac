"""Models that FSDP2 shards inside each node, against the reference that plays whole ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import reference
import workloads
from jobs import make_reproducible, run_job
from paceline.teams import Workers
from paceline.train import attach
from strategies.test_against_reference import NUM_STEPS, TRAININGS

NODES = (2, 2)
# Elementwise algorithms, each with the optimizer that it has not been tried with elsewhere.
CASES = [
    ("sync", "plain", "adamw"),
    ("sync", "groups", "momentum"),
    ("sync-hierarchical", "plain", "momentum"),
    ("local-sgd", "frozen", "adamw"),
    ("post-local-sgd", "plain", "momentum"),
    ("diloco", "plain", "adamw"),
    ("streaming", "plain", "momentum"),
    ("daso-stale", "plain", "adamw"),
    ("daso-corrected", "groups", "momentum"),
    ("daso-plateau-stale", "plain", "momentum"),
    ("slowmo", "plain", "momentum"),
    ("gossip", "plain", "momentum"),
]
Case = tuple[str, str, str]


def shard(
    model: nn.Module,
    *,
    over: str = "shard",
    parts_only: bool = False,
    nodes: tuple[int, ...] = NODES,
) -> nn.Module:
    """Shard over this node's workers; the first layer by itself, as one does with blocks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (len(nodes), nodes[0]), mesh_dim_names=("node", "shard"))
    everybody = init_device_mesh("cpu", (sum(nodes),))
    chosen = {"shard": mesh["shard"], "all": everybody, "both": mesh}[over]
    assert isinstance(model, nn.Sequential)
    fully_shard(model[0], mesh=chosen)
    if not parts_only:
        fully_shard(model, mesh=chosen)
    return model


def whole_state(model: nn.Module) -> torch.Tensor:
    """All parameters, put together from the node's shards."""
    parts = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    return torch.cat([part.detach().double().flatten() for part in parts])


def train_all(workers: Workers, cases: list[Case]) -> list[tuple[list[torch.Tensor], list[Any]]]:
    return [_train(workers, *case) for case in cases]


def _train(
    workers: Workers, training_name: str, model_kind: str, optimizer_kind: str
) -> tuple[list[torch.Tensor], list[Any]]:
    training = TRAININGS[training_name]
    rank, num_workers = workers.world.rank, workers.world.size
    # Another start on each node: attaching makes them equal.
    model = shard(workloads.build_model(model_kind, seed=workers.node_index))
    optimizer = workloads.build_optimizer(optimizer_kind, model, has_groups=model_kind == "groups")
    options = training.options | training.real_only
    seen = []
    with attach(model, optimizer, training.strategy, workers=workers, **options) as pace:
        for step in range(1, NUM_STEPS + 1):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, rank))
            optimizer.step()
            if step in training.reports:
                pace.report(training.reports[step] + rank - (num_workers - 1) / 2)
            seen.append(whole_state(model))
        # Leaves the outermost layer's parameters gathered: what is trained are the shards.
        with torch.no_grad():
            model(workloads.make_batch(0, 0)[0])
    seen.append(whole_state(model))
    shards = [p.to_local().detach().clone() for p in model.parameters()]  # type: ignore[attr-defined]
    return seen, shards


def test_equals_the_reference_at_every_step_and_nodes_end_equal() -> None:
    by_worker = run_job(train_all, CASES, nodes=NODES)
    make_reproducible()
    for index, (training_name, model_kind, optimizer_kind) in enumerate(CASES):
        training = TRAININGS[training_name]
        game = reference.Game(NODES, partial(workloads.build, model_kind, optimizer_kind))
        by_step = reference.play(
            training.rule(game, **training.options),
            workloads.batch_loss,
            NUM_STEPS,
            observe=workloads.flat_state,
            reports=training.reports,
        )
        for rank in range(sum(NODES)):
            states, shards = by_worker[rank][index]
            for step, state in enumerate(states):
                wrong = ~torch.isclose(state, by_step[step][rank], rtol=1e-6, atol=1e-6)
                assert not wrong.any(), f"{training_name}, worker {rank}, step {step + 1}"
            twin = by_worker[(rank + 2) % 4][index][1]
            assert all(map(torch.equal, shards, twin)), training_name


class Normed(nn.Sequential):
    """With statistics, which are whole on every worker."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def use_in_odd_ways(workers: Workers) -> dict[str, Any]:
    rank = workers.world.rank
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    model = shard(Normed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pace = attach(model, optimizer, "local-sgd", workers=workers, period=2)
    for step in range(3):
        for part in range(2):  # accumulated: the last pass exchanges the sum
            with pace.no_sync() if part == 0 else torch.enable_grad():
                torch.autograd.backward(workloads.batch_loss(model, 10 * step + part, rank))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    pace.finish(optimizer_state=True)
    found["buffers"] = torch.cat([b.double().flatten() for b in model.buffers()])
    found["momentum"] = [
        optimizer.state[p]["momentum_buffer"].to_local().clone() for p in model.parameters()
    ]
    found["refusals"] = {
        name: refusal(work)
        for name, work in {
            "join": lambda: pace.join().__enter__(),
            "loader": lambda: pace.loader([1, 2, 3, 4], batch_size=4),
            "weigh": lambda: pace.weigh(3.0),
            "survive": lambda: attach(model, optimizer, "local-sgd", survive=True),
            "objective": lambda: pace.objective(lambda x: x, torch.ones(2)),
        }.items()
    }
    pace.detach()
    found["late"] = train_with_late_exchanges(workers)
    return found


def train_with_late_exchanges(workers: Workers) -> list[torch.Tensor]:
    """All workers of a node must merge at the same step, whichever shard has arrived."""
    model = shard(workloads.build_model("plain"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"period": 2, "delay": 1, "warmup_steps": 0, "late": "continue"}
    with attach(model, optimizer, "daso", workers=workers, **options):
        for step in range(12):
            optimizer.zero_grad()
            torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
            optimizer.step()
    return [whole_state(model)]


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def test_buffers_momenta_and_what_is_refused() -> None:
    found = run_job(use_in_odd_ways, nodes=NODES)
    for each in found[1:]:
        assert torch.equal(each["buffers"], found[0]["buffers"])
    for rank in (0, 1):
        assert all(map(torch.equal, found[rank]["momentum"], found[rank + 2]["momentum"]))
    for each in found[1:]:
        assert torch.equal(each["late"][0], found[0]["late"][0])
    for name, sentence in found[0]["refusals"].items():
        assert "does not work with a model that is sharded; " in sentence, name


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))


def attach_wrongly(workers: Workers) -> list[str]:
    models = [
        (shard(two_layers(), over="all"), "sync"),
        (shard(two_layers(), over="both"), "sync"),
        (shard(two_layers(), parts_only=True), "sync"),
        (shard(two_layers()), "demo"),
        (shard(two_layers()), "co2"),
        (shard(two_layers()), "auto"),
    ]
    return [
        refusal(
            lambda model=model, strategy=strategy: attach(  # type: ignore[misc]
                model, torch.optim.SGD(model.parameters(), lr=0.1), strategy, workers=workers
            )
        )
        for model, strategy in models
    ]


def test_shards_that_cannot_be_exchanged_are_refused() -> None:
    for everywhere, hybrid, mixed, *unable in run_job(attach_wrongly, nodes=NODES):
        assert "is sharded over the workers 0, 1, 2, 3, and those of this node are" in everywhere
        assert "on a mesh of 2 dimensions; paceline averages across nodes itself" in hybrid
        assert "is whole, and other parameters are sharded; call fully_shard" in mixed
        for sentence in unable:
            assert "needs whole parameters" in sentence


def test_unequal_nodes_are_refused() -> None:
    for sentence in run_job(attach_on_unequal_nodes, nodes=(2, 1)):
        assert "nodes have 2, 1 workers" in sentence


def attach_on_unequal_nodes(workers: Workers) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(6, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
    return refusal(
        lambda: attach(model, torch.optim.SGD(model.parameters()), "sync", workers=workers)
    )
