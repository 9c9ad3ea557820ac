"""The state of a job for another number of workers: one worker's, or the average of all nodes.

Every part of the save is read by one worker that sees it, and all get the result over the network.
So no disk need be shared, and a node that is new needs no files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.strategies.equality import take_over
from paceline.teams import Team
from paceline.train import saves
from paceline.train.contents import Contents
from paceline.train.crew import CheckpointError, Crew
from paceline.train.optimizer_state import send_bytes
from paceline.train.skeleton import put_together


@dataclass(frozen=True)
class Sources:
    """Whose parts of a save are read, by whom, and what each counts."""

    readers: Mapping[int, int]
    """By the rank of the worker that saved it: who reads its part now."""
    weights: Mapping[int, float]
    is_average: bool

    @property
    def first(self) -> int:
        """Whose learning rates, loaders and other values that have no average are taken over."""
        return min(self.readers)

    def ranks_of(self, reader: int) -> list[int]:
        """The parts that one worker reads."""
        return [rank for rank, who in self.readers.items() if who == reader]


def find_sources(
    marker: Mapping[str, Any], visible: Sequence[Sequence[int]], *, is_average: bool
) -> Sources:
    """Choose the parts to read: any one where all are equal, otherwise all that can be seen.

    Args:
        marker: What was saved.
        visible: The parts that each worker of this job sees.
        is_average: Whether workers had differed.

    """
    nodes: Sequence[Sequence[int]] = marker["nodes"]
    readers: dict[int, int] = {}
    for rank in sorted(rank for ranks in nodes for rank in ranks):
        seeing = [worker for worker, ranks in enumerate(visible) if rank in ranks]
        if seeing and (is_average or not readers):
            shares = list(readers.values())
            readers[rank] = min(seeing, key=lambda worker: (shares.count(worker), worker))
    if not readers:
        raise CheckpointError(
            "no worker of this job sees a part of the checkpoint: its disks belong to other nodes"
        )
    is_by_nodes = marker.get("options", {}).get("weighting") == "nodes"
    sizes = {rank: len(ranks) for ranks in nodes for rank in ranks}
    weights = {rank: 1.0 / sizes[rank] if is_by_nodes else 1.0 for rank in readers}
    return Sources(readers, weights, is_average)


def gather_state(
    target: Path,
    number: int,
    marker: Mapping[str, Any],
    sources: Sources,
    contents: Contents,
    crew: Crew,
) -> dict[str, Any]:
    """The state that all workers of this job go on from."""
    parts: dict[int, saves.Part] = {}
    where = saves.save_path(target, number)

    def read() -> None:
        for rank in sources.ranks_of(crew.rank):
            path = saves.part_path(target, number, rank, layout=marker["format"])
            parts[rank] = saves.read_part(path, expected=saves.expected_checksum(marker, rank))

    crew.share(read, task=f"load {where}")
    num_saved = sum(map(len, marker["nodes"]))
    if sources.is_average and len(sources.readers) < num_saved and crew.rank == 0:
        missing = sorted(set(range(num_saved)) - sources.readers.keys())
        warnings.warn(
            f"{where} goes on from the average of {len(sources.readers)} of its {num_saved} "
            f"workers: nobody sees the parts of workers {missing}",
            RuntimeWarning,
            stacklevel=5,
        )
    team, reader = contents.workers.world, sources.readers[sources.first]
    tensors, skeleton = _tell(parts.get(sources.first), team, reader, contents.device)
    if len(sources.readers) > 1:
        averaged = [name for name, one in tensors.items() if _has_average(one)]
        _average(tensors, averaged, parts, sources, team, contents.device)
        others = [one for name, one in tensors.items() if name not in set(averaged)]
    else:
        others = list(tensors.values())
    _spread(others, team, reader, contents.device)
    return put_together(tensors, skeleton, contents.device)


def _tell(
    part: saves.Part | None, team: Team, reader: int, device: torch.device
) -> tuple[dict[str, torch.Tensor], bytes]:
    """The reader's tensors, which others have room for, and its skeleton."""
    told = b""
    if part is not None and team.rank == reader:
        shapes = {
            name: [str(one.dtype).removeprefix("torch."), list(one.shape)]
            for name, one in part[0].items()
        }
        told = json.dumps(shapes).encode() + b"\n" + part[1]
    head, _, skeleton = send_bytes(told, team, reader, device).partition(b"\n")
    if part is not None and team.rank == reader:
        return dict(part[0]), skeleton
    empty = {
        name: torch.empty(shape, dtype=getattr(torch, dtype))
        for name, (dtype, shape) in json.loads(head).items()
    }
    return empty, skeleton


def _average(
    tensors: dict[str, torch.Tensor],
    names: Sequence[str],
    parts: Mapping[int, saves.Part],
    sources: Sources,
    team: Team,
    device: torch.device,
) -> None:
    """Σ wᵢ·xᵢ / Σ wᵢ over the workers that have a value, in double precision: equal ones stay."""
    for name in names:
        one = tensors[name]
        wide = torch.complex128 if one.is_complex() else torch.float64
        total = torch.zeros(one.numel() + 1, dtype=wide, device=device)
        for rank, (own, _) in parts.items():
            if name in own and own[name].shape == one.shape:
                total[:-1] += sources.weights[rank] * own[name].reshape(-1).to(device, wide)
                total[-1] += sources.weights[rank]
        # As real numbers: not every backend sums complex ones.
        team.all_reduce(torch.view_as_real(total) if total.is_complex() else total, "sum").wait()
        tensors[name] = (total[:-1] / total[-1]).to("cpu", one.dtype).view(one.shape)


def _spread(tensors: Sequence[torch.Tensor], team: Team, reader: int, device: torch.device) -> None:
    """Give all workers the reader's values."""
    tensors = [one for one in tensors if one.numel()]
    if device.type == "cpu":
        take_over(tensors, team, reader)
        return
    for one in tensors:  # one by one: the GPU need not hold all of them
        moved = one.to(device)
        take_over([moved], team, reader)
        one.copy_(moved)


def _has_average(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
