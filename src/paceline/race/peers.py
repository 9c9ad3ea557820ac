"""Other libraries' ways to train with less communication, as entries in a race.

Each is set up as its documentation says, with the same averaging period as ours where it has one.
Nodes are the units: gradients are averaged inside a node at every step.
"""

# No postponed annotations: see entry.py.

import contextlib
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import (
    ModelAverager,
    PeriodicModelAverager,
)
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer

from paceline.race.entry import DdpEntry, Entry, EntryMaker, Start
from paceline.race.traffic import own_address
from paceline.teams.bound_store import BoundStore
from paceline.teams.group import GroupTeam

_PERIOD = 4
_WARM_UP_STEPS = 4


def make_ddp_bf16(start: Start) -> Entry:
    """DDP with gradients cast to bf16 on the way."""
    return DdpEntry(start, start.workers.world, hook=default_hooks.bf16_compress_hook)


def make_ddp_powersgd(start: Start) -> Entry:
    """DDP with gradients compressed by PowerSGD, rank 1."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=_WARM_UP_STEPS
    )
    # One bucket: the hook starts later collectives of a bucket from Gloo's threads, and with
    # several buckets, workers reach different ones at the same time and abort.
    return DdpEntry(
        start,
        start.workers.world,
        hook=powerSGD_hook.powerSGD_hook,
        state=state,
        bucket_mib=1024,
    )


class _AveragerEntry(DdpEntry):
    """PyTorch's PostLocalSGDOptimizer with one of its model averagers."""

    def __init__(self, start: Start, averager: ModelAverager) -> None:
        node = start.workers.node
        assert isinstance(node, GroupTeam)
        state = PostLocalSGDState(  # type: ignore[no-untyped-call]
            process_group=None, subgroup=node.group, start_localSGD_iter=_WARM_UP_STEPS
        )
        super().__init__(start, start.workers.world, hook=post_localSGD_hook, state=state)
        inner = averager.average_parameters

        def timed_average(params: Any) -> None:
            before_s = time.monotonic()
            inner(params)  # type: ignore[no-untyped-call]
            self.waiting_s += time.monotonic() - before_s

        averager.average_parameters = timed_average  # type: ignore[method-assign]
        self.optimizer = PostLocalSGDOptimizer(start.optimizer, averager)

    def finish(self) -> None:
        """One average more than the averager's schedule has."""
        _average(self.network)


def make_torch_post_local_sgd(start: Start) -> Entry:
    """torch.distributed's post-local SGD."""
    averager = PeriodicModelAverager(period=_PERIOD, warmup_steps=_WARM_UP_STEPS)
    return _AveragerEntry(start, averager)


def make_torch_hierarchical(start: Start) -> Entry:
    """torch.distributed's hierarchical model averager: often in the node, rarely in the world."""
    from collections import OrderedDict

    periods: OrderedDict[int, int] = OrderedDict()
    node_size = start.workers.node.size
    if 1 < node_size < start.workers.world.size:
        periods[1] = node_size
    periods[_PERIOD] = start.workers.world.size
    averager = HierarchicalModelAverager(  # type: ignore[no-untyped-call]
        period_group_size_dict=periods, warmup_steps=_WARM_UP_STEPS
    )
    return _AveragerEntry(start, averager)


@torch.no_grad()
def _average(network: torch.nn.Module) -> None:
    for parameter in network.parameters():
        dist.all_reduce(parameter.div_(dist.get_world_size()))


def make_accelerate_local_sgd(start: Start) -> Entry:
    """accelerate's LocalSGD around DDP: no gradients are exchanged, parameters every few steps."""
    _require("accelerate")
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    network, optimizer = accelerator.prepare(start.model, start.optimizer)
    entry = _CallbackEntry(network, optimizer)
    local_sgd = LocalSGD(accelerator=accelerator, model=network, local_sgd_steps=_PERIOD)
    local_sgd.__enter__()
    entry.on_step = local_sgd.step
    entry.on_finish = lambda: local_sgd.__exit__(None, None, None)
    return entry


class _CallbackEntry(Entry):
    """An entry that calls another library after each step, and counts that as waiting."""

    on_step: Callable[[], Any]
    on_finish: Callable[[], Any]

    def after_step(self) -> None:
        """The library's turn."""
        before_s = time.monotonic()
        self.on_step()
        self.waiting_s += time.monotonic() - before_s

    def finish(self) -> None:
        """The library's last turn."""
        self.on_finish()


def make_torchft_local_sgd(start: Start) -> Entry:
    """torchft's LocalSGD: each node a replica, averaged every few steps."""
    _require("torchft")
    from torchft.local_sgd import LocalSGD

    return _TorchftEntry(
        start,
        lambda manager: LocalSGD(manager, start.model, start.optimizer, sync_every=_PERIOD),
    )


def make_torchft_diloco(start: Start) -> Entry:
    """torchft's DiLoCo: each node a replica, with an outer Nesterov optimizer."""
    _require("torchft")
    from torchft.local_sgd import DiLoCo

    outer = torch.optim.SGD(start.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    return _TorchftEntry(
        start,
        lambda manager: DiLoCo(
            manager, [start.model], start.optimizer, outer, sync_every=_PERIOD, pin_memory=False
        ),
        use_async_quorum=False,
    )


class _TorchftEntry(DdpEntry):
    """A torchft algorithm across nodes, DDP inside each of them."""

    def __init__(
        self, start: Start, make: Callable[[Any], Any], *, use_async_quorum: bool = True
    ) -> None:
        super().__init__(start, start.workers.node)
        from torchft.checkpointing.pg_transport import PGTransport
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        timeout, host = timedelta(seconds=60), own_address(os.environ["MASTER_ADDR"])
        group = ProcessGroupGloo(timeout=timeout)
        self._lighthouse, address = _start_lighthouse(start)
        self._store = _node_store(start)
        with _listening_at(host):
            self._manager = Manager(
                pg=group,
                load_state_dict=None,
                state_dict=None,
                min_replica_size=start.workers.num_nodes,
                use_async_quorum=use_async_quorum,
                rank=start.workers.node.rank,
                world_size=start.workers.node.size,
                store_addr=self._store.host,
                store_port=self._store.port,
                lighthouse_addr=address,
                replica_id=f"node{start.workers.node_index}",
                hostname=host,
                init_sync=False,
                # torchft's other one is a server.
                checkpoint_transport=PGTransport(group, timeout, torch.device("cpu")),
            )
        self._algorithm = make(self._manager)
        self._algorithm.__enter__()
        self._start = start
        inner = self._manager.should_commit

        def timed_commit(*arguments: Any, **keywords: Any) -> Any:
            before_s = time.monotonic()
            result = inner(*arguments, **keywords)
            self.waiting_s += time.monotonic() - before_s
            return result

        self._manager.should_commit = timed_commit

    def finish(self) -> None:
        """Leave the algorithm, average once more, and end its servers."""
        self._algorithm.__exit__(None, None, None)
        _average(self.network)
        self._manager.shutdown(wait=False)
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _start_lighthouse(start: Start) -> tuple[Any, str]:
    """torchft's coordinator, on the first worker; its address for all."""
    from torchft.coordination import LighthouseServer

    lighthouse = None
    told: list[Any] = [None]
    if start.workers.world.rank == 0:
        host = own_address(os.environ["MASTER_ADDR"])
        lighthouse = LighthouseServer(
            bind=f"{host}:29510", min_replicas=start.workers.num_nodes, join_timeout_ms=1000
        )
        told = [f"http://{host}:29510"]
    dist.broadcast_object_list(told, src=0)
    return lighthouse, str(told[0])


@contextlib.contextmanager
def _listening_at(host: str) -> Iterator[None]:
    """torchft's managers that are made inside listen at this address, not at all of them."""
    module = importlib.import_module("torchft.manager")
    server = module.ManagerServer

    def bound(*, bind: str, **settings: Any) -> Any:
        return server(bind=f"{host}:{bind.rpartition(':')[2]}", **settings)

    setattr(module, "ManagerServer", bound)  # noqa: B010
    try:
        yield
    finally:
        setattr(module, "ManagerServer", server)  # noqa: B010


def _node_store(start: Start) -> TCPStore:
    """A store for each node, as torchrun would have made for a replica of its own."""
    host, index = own_address(os.environ["MASTER_ADDR"]), start.workers.node_index
    own = None
    if start.workers.node.rank == 0:
        own = BoundStore(host, 0, is_master=True, wait_for_workers=False)
    # Without namespaces, all nodes have one address: each takes a port that is free.
    told: list[Any] = [None] * start.workers.world.size
    dist.all_gather_object(told, None if own is None else (index, own.port))
    port = dict(each for each in told if each is not None)[index]
    return own or BoundStore(host, port, is_master=False, wait_for_workers=False)


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{package} is not installed; pip install 'paceline[peers]' to race against it"
        )


PEERS: dict[str, EntryMaker] = {
    "ddp-bf16": make_ddp_bf16,
    "ddp-powersgd": make_ddp_powersgd,
    "torch-post-local-sgd": make_torch_post_local_sgd,
    "torch-hierarchical": make_torch_hierarchical,
    "accelerate-local-sgd": make_accelerate_local_sgd,
    "torchft-local-sgd": make_torchft_local_sgd,
    "torchft-diloco": make_torchft_diloco,
}
