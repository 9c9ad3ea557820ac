"""An entry in a race: one way to train the same model on the same data."""

# No postponed annotations here: DDP checks those of its communication hook.

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.teams import Team, Workers
from paceline.teams.emulated import EmulatedTeam
from paceline.teams.group import GroupTeam

CommunicationHook = Callable[[Any, GradBucket], Future[torch.Tensor]]


class Entry(ABC):
    """One way to train. The race's loop calls ``network`` and the moments below."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.waiting_s = 0.0
        """Time in which this worker had nothing to do but wait for others."""

    @abstractmethod
    def after_backward(self) -> None:
        """The backward pass has returned; the optimizer has not stepped yet."""

    @abstractmethod
    def after_step(self, loss: float) -> None:
        """The optimizer has stepped."""

    @abstractmethod
    def finish(self) -> None:
        """Training is over."""


class DdpEntry(Entry):
    """torch's DistributedDataParallel over a team.

    Waiting is measured from the moment the last bucket of gradients is handed to communication,
    when nothing is left to compute, until the backward pass returns.
    """

    def __init__(self, model: nn.Module, team: Team) -> None:
        group = team.group if isinstance(team, GroupTeam) else None
        network = DistributedDataParallel(model, process_group=group)
        super().__init__(network)
        hook = _paced_hook(team) if isinstance(team, EmulatedTeam) else allreduce_hook
        self._last_bucket_s = 0.0

        def timed_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
            self._last_bucket_s = time.monotonic()
            return hook(state, bucket)

        network.register_comm_hook(group, timed_hook)

    def after_backward(self) -> None:
        """Count the time since the last bucket as waiting."""
        self.waiting_s += time.monotonic() - self._last_bucket_s

    def after_step(self, loss: float) -> None:
        """DDP does nothing after a step."""

    def finish(self) -> None:
        """DDP leaves all workers equal."""


def _paced_hook(team: EmulatedTeam) -> CommunicationHook:
    """DDP's all-reduce through a team whose links are emulated in software."""

    def hook(_state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        buffer = bucket.buffer()
        pending = team.all_reduce(buffer, "mean")
        future: Future[torch.Tensor] = Future()

        def complete() -> None:
            pending.wait()
            future.set_result(buffer)

        threading.Thread(target=complete, daemon=True).start()
        return future

    return hook


def make_ddp(model: nn.Module, _optimizer: Optimizer, workers: Workers) -> Entry:
    """DDP over all workers."""
    return DdpEntry(model, workers.world)


def make_floor(model: nn.Module, _optimizer: Optimizer, workers: Workers) -> Entry:
    """DDP inside each node and nothing between nodes: what no strategy can beat."""
    return DdpEntry(model, workers.node)


EntryMaker = Callable[[nn.Module, Optimizer, Workers], Entry]

ENTRIES: dict[str, EntryMaker] = {"ddp": make_ddp, "floor": make_floor}


def entry_maker(name: str) -> EntryMaker:
    """The maker of an entry by its name."""
    if name not in ENTRIES:
        raise ValueError(f"there is no strategy {name!r} to race; known are {', '.join(ENTRIES)}")
    return ENTRIES[name]
