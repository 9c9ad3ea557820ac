"""An entry in a race: one way to train the same model on the same data."""

# No postponed annotations here: DDP checks those of its communication hook.

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.strategies import make_strategy, strategy_names
from paceline.suggestion import suggestion
from paceline.teams import Team, Workers
from paceline.teams.emulated import EmulatedTeam
from paceline.teams.group import GroupTeam
from paceline.train import attach

CommunicationHook = Callable[[Any, GradBucket], Future[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What every entry starts from."""

    model: nn.Module
    optimizer: Optimizer
    workers: Workers
    num_steps: int
    options: Mapping[str, Any]


class Entry:
    """One way to train. The race's loop calls ``network``, ``optimizer`` and the moments below."""

    def __init__(self, network: nn.Module, optimizer: Optimizer) -> None:
        self.network = network
        self.optimizer = optimizer
        self.waiting_s = 0.0
        """Time in which this worker had nothing to do but wait for others."""

    def after_backward(self) -> None:
        """The backward pass has returned; the optimizer has not stepped yet."""

    def after_step(self) -> None:
        """The optimizer has stepped."""

    def after_epoch(self, loss: float) -> None:
        """An epoch is over; its mean loss on this worker."""

    def finish(self) -> None:
        """Training is over: give all workers the same model."""

    def close(self) -> None:
        """Nothing is left to do: remove hooks."""


class DdpEntry(Entry):
    """torch's DistributedDataParallel over a team.

    Waiting is measured from the moment the last bucket of gradients is handed to communication,
    when nothing is left to compute, until the backward pass returns.
    """

    def __init__(
        self,
        start: Start,
        team: Team,
        *,
        hook: CommunicationHook = allreduce_hook,
        state: Any = None,
        bucket_mib: int | None = None,
    ) -> None:
        group = team.group if isinstance(team, GroupTeam) else None
        network = DistributedDataParallel(
            start.model, process_group=group, bucket_cap_mb=bucket_mib
        )
        super().__init__(network, start.optimizer)
        chosen = _paced_hook(team) if isinstance(team, EmulatedTeam) else hook
        self._last_bucket_s = 0.0

        def timed_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
            self._last_bucket_s = time.monotonic()
            return chosen(state, bucket)

        network.register_comm_hook(group if state is None else state, timed_hook)

    def after_backward(self) -> None:
        """Count the time since the last bucket as waiting."""
        self.waiting_s += time.monotonic() - self._last_bucket_s


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


class StrategyEntry(Entry):
    """One of paceline's own strategies, attached as a user would."""

    def __init__(self, name: str, start: Start) -> None:
        super().__init__(start.model, start.optimizer)
        strategy = make_strategy(name, **start.options)
        if strategy.schedule().wants_length:
            strategy.set_run_length(start.num_steps)
        self._pace = attach(start.model, start.optimizer, strategy, workers=start.workers)

    def after_step(self) -> None:
        """The strategy counts its own waiting."""
        self.waiting_s = self._pace.strategy.waiting_s

    def after_epoch(self, loss: float) -> None:
        """The loss feeds the strategy's schedule."""
        self._pace.report(loss)

    def finish(self) -> None:
        """Make all workers equal."""
        self._pace.finish()

    def close(self) -> None:
        """Detach; the workers stay for the next entry."""
        self._pace.detach()


def make_ddp(start: Start) -> Entry:
    """DDP over all workers."""
    return DdpEntry(start, start.workers.world)


def make_floor(start: Start) -> Entry:
    """DDP inside each node and nothing between nodes: the lower bound for every strategy."""
    return DdpEntry(start, start.workers.node)


EntryMaker = Callable[[Start], Entry]

_BASELINES: dict[str, EntryMaker] = {"ddp": make_ddp, "floor": make_floor}


def entry_names() -> list[str]:
    """Everything that can race: baselines, strategies and peers."""
    from paceline.race.peers import PEERS

    return [*_BASELINES, *strategy_names(), *PEERS]


def entry_maker(name: str) -> EntryMaker:
    """The maker of an entry by its name."""
    from paceline.race.peers import PEERS

    if name in strategy_names():
        return lambda start: StrategyEntry(name, start)
    makers = {**_BASELINES, **PEERS}
    if name not in makers:
        raise ValueError(
            f"there is no strategy {name!r} to race: {suggestion(name, entry_names())}"
        )
    return makers[name]
