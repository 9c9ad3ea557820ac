"""Models that FSDP2 shards inside each node: which can be trained, and why others cannot."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from paceline.strategies import Strategy
from paceline.strategies.local import is_sharded
from paceline.teams import Workers
from paceline.teams.shards import workers_of_shards
from paceline.train.batch_norm import SyncBatchNorm

_MESH = (
    'init_device_mesh(device, (nodes, workers), mesh_dim_names=("node", "shard"))["shard"], as '
    "fully_shard(model, mesh=...)"
)


def has_shards(model: nn.Module) -> bool:
    """Whether any of a model's parameters is spread over several workers."""
    return any(is_sharded(parameter) for parameter in model.parameters())


def gather_no_more(model: nn.Module) -> None:
    """Give up parameters that a forward pass has gathered: only the parts here are trained."""
    for module in model.modules():
        managed: Any = module
        if _is_managed(module):
            managed.reshard()


def _is_managed(module: nn.Module) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def shard_workers(model: nn.Module, strategy: Strategy, workers: Workers) -> Workers:
    """The workers as a strategy sees them that trains this worker's part of a sharded model."""
    _check_strategy(strategy)
    _check_modules(model)
    _check_meshes(model, workers)
    return workers_of_shards(workers)


def _check_strategy(strategy: Strategy) -> None:
    if not strategy.takes_shards:
        raise ValueError(
            f"{type(strategy).__name__} needs whole parameters, and the model is sharded by "
            "fully_shard; use sync, local-sgd, diloco or daso, or a model that is whole on every "
            "worker"
        )


def _check_modules(model: nn.Module) -> None:
    if not any(_is_managed(module) for module in model.modules()):
        raise ValueError(
            "the model has DTensors as parameters that fully_shard has not made; tensor "
            "parallelism is not supported, so shard the model with fully_shard inside each node"
        )
    for name, module in model.named_modules():
        if isinstance(module, SyncBatchNorm):
            raise ValueError(
                f"{name} is a SyncBatchNorm, which does not work in a model that is sharded by "
                "fully_shard; use another normalisation, such as LayerNorm"
            )


def _check_meshes(model: nn.Module, workers: Workers) -> None:
    if len(set(workers.node_sizes)) > 1:
        raise ValueError(
            f"the model is sharded and nodes have {_listed(workers.node_sizes)} workers; shards of "
            "one node would not fit those of another, so start as many workers on every node"
        )
    own = workers.ranks_by_node[workers.node_index]
    for name, parameter in model.named_parameters():
        if not is_sharded(parameter):
            raise ValueError(
                f"{name} is whole, and other parameters are sharded; call fully_shard on the "
                "whole model too, after its parts"
            )
        sharded: Any = parameter
        _check_mesh(name, sharded, own, workers)


def _check_mesh(name: str, parameter: Any, own: tuple[int, ...], workers: Workers) -> None:
    mesh = parameter.device_mesh
    if mesh.ndim != 1 or [type(each).__name__ for each in parameter.placements] != ["Shard"]:
        raise ValueError(
            f"{name} is placed as {parameter.placements} on a mesh of {mesh.ndim} dimensions; "
            "paceline averages across nodes itself, so shard over one node's workers alone: "
            f"{_MESH}"
        )
    ranks = [int(rank) for rank in mesh.mesh.flatten().tolist()]
    if sorted(ranks) != sorted(own):
        raise ValueError(
            f"{name} is sharded over the workers {_listed(ranks)}, and those of this node are "
            f"{_listed(own)}; shard over one node's workers alone: {_MESH}"
        )
    if ranks != list(own):
        raise ValueError(
            f"{name} is sharded over this node's workers in the order {_listed(ranks)}; the mesh "
            f"must have them in the order of their ranks: {_MESH}"
        )


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def refuse_shards(are_there: bool, what: str, instead: str) -> None:
    """Refuse what does not work with a sharded model.

    Args:
        are_there: Whether the model is sharded.
        what: What was asked for.
        instead: What to do.

    """
    if are_there:
        raise ValueError(f"{what} does not work with a model that is sharded; {instead}")
