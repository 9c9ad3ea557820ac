"""The teams of one job as one worker sees them."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from paceline.teams.backend import agree_on_backend, find_gpu
from paceline.teams.background import Background
from paceline.teams.beat import Member
from paceline.teams.emulated import EmulatedTeam, link_of_node
from paceline.teams.group import GroupTeam
from paceline.teams.groups import Groups, default_store
from paceline.teams.host import machine
from paceline.teams.launcher import Place, find_place
from paceline.teams.store_watch import StoreWatch
from paceline.teams.team import Team
from paceline.teams.watch import Call, Watch

if TYPE_CHECKING:
    from paceline.teams.survivors import Survivors

_TIMEOUT_S = 600.0
_CONNECT_S = 30.0
_SPEAKING_NODES = 16


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The teams of one job: all workers, those of my machine, and my peers on the others.

    ``across`` holds the workers with my local index, one on each node that has so many. Nodes may
    have unequal numbers of workers: ``ranks_by_node[i]`` are the ranks on node ``i``.
    """

    world: Team
    node: Team
    across: Team
    background: Background
    ranks_by_node: tuple[tuple[int, ...], ...]
    node_names: tuple[str, ...]
    clock: Callable[[], float] = time.perf_counter
    """Seconds since some moment; virtual seconds in a rehearsal."""
    watch: Watch = field(default_factory=Watch, repr=False)
    """Who waits where; says who has not come."""
    survivors: Survivors | None = field(default=None, repr=False)
    """Where nodes may be lost and come back: how they do."""
    _groups: Groups | None = field(default=None, repr=False)
    _teams: tuple[GroupTeam, ...] = field(default=(), repr=False)

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return len(self.ranks_by_node)

    @property
    def node_index(self) -> int:
        """The place of this worker's machine among the machines."""
        return next(i for i, ranks in enumerate(self.ranks_by_node) if self.world.rank in ranks)

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """The number of workers on each machine."""
        return tuple(len(ranks) for ranks in self.ranks_by_node)

    @property
    def num_shared_indices(self) -> int:
        """How many local indices every node has: the number of teams that span all nodes."""
        return min(len(ranks) for ranks in self.ranks_by_node)

    def make_team(self, name: str) -> Team:
        """A further team of all workers, for what runs beside training. All workers call it.

        Args:
            name: What messages call it.

        """
        if self._groups is None:
            return self.world
        # All are there, or have died since: a barrier tells, and connecting to a dead worker would
        # take until the timeout.
        self.world.barrier()
        try:
            group = self._groups.make([range(self.world.size)], connect_s=_CONNECT_S)
        except RuntimeError as error:
            raise self.watch.explain(Call(name, "forming", 0), error) from error
        return GroupTeam(group, name=name, watch=self.watch)

    def close(self) -> None:
        """Give back threads and connections; the teams are of no use any more.

        Nothing is said to the other workers, which may be busy or gone. The default process group
        stays as it is.
        """
        if self.survivors is not None:
            self.survivors.close()
        if self._groups is None:
            self.background.close()
            return
        self.watch.close()
        for team in self._teams:
            team.close()
        if self.watch.is_in_trouble:
            # Others wait in vain. A forked process, such as a DataLoader's, may hold connections
            # that would then outlive this worker's end of them.
            self._groups.abort()
        self._groups.close(self.background)


def find_workers(
    mesh: DeviceMesh | None = None,
    *,
    backend: str | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Workers:
    """The workers of this job, from a device mesh or the launcher. All workers call it.

    Initialises ``torch.distributed`` if the user has not: NCCL for CUDA and Gloo for CPU tensors
    where there is a GPU for each worker, Gloo alone otherwise.

    Args:
        mesh: A mesh of two dimensions, nodes x workers; by default the launcher's variables tell.
        backend: Another of torch's backends.
        timeout_s: How long a worker waits for the others before it gives up: by default as long as
            the process group was told to, ten minutes if it is initialised here.
        environment: Where the launcher's variables are.

    """
    place = find_place(environment)
    if not dist.is_initialized():
        initialise(place, backend, timeout_s, environment)
    nodes = _nodes_of_mesh(mesh) if mesh is not None else _nodes_of_job(place)
    return form_workers(nodes, timeout_s=timeout_s, environment=environment)


def form_workers(
    nodes: Sequence[Sequence[int]],
    *,
    timeout_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
    first_node: int = 0,
) -> Workers:
    """Form the teams of a job. All workers call it.

    Args:
        nodes: The ranks of each node's workers.
        timeout_s: How long a worker waits for the others; by default the process group's timeout.
        environment: Where a lab says which links it emulates.
        first_node: The number of the first node, where this job is a part of a larger one.

    """
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s} must be more than 0")
    num_workers = dist.get_world_size()
    if sorted(rank for ranks in nodes for rank in ranks) != list(range(num_workers)):
        raise ValueError(
            f"The nodes {[list(ranks) for ranks in nodes]} must name each of the {num_workers} "
            "workers of this job exactly once."
        )
    # torch numbers the members of a group by their ranks; a place in the node must mean the same.
    nodes = [sorted(ranks) for ranks in nodes]
    most = max(len(ranks) for ranks in nodes)
    columns = [[ranks[i] for ranks in nodes if i < len(ranks)] for i in range(most)]
    own_node = next(i for i, ranks in enumerate(nodes) if dist.get_rank() in ranks)
    link = link_of_node(environment, first_node + own_node)

    groups = Groups(timeout_s)
    teams: list[GroupTeam] = []
    partitions: dict[str, Sequence[Sequence[int]]] = {
        # A group of its own: what the user calls on the default one cannot meet our calls.
        "world": [range(num_workers)],
        "node": nodes,
        "across": columns,
        "background node": nodes,
        "background across": columns,
    }
    made = {name: groups.make(partition) for name, partition in partitions.items()}
    node_names, watch = _meet(nodes, columns, groups, first_node)

    def team(name: str) -> Team:
        plain = GroupTeam(made[name], name=name, watch=watch)
        teams.append(plain)
        ranks = dist.get_process_group_ranks(made[name])
        num_local = len(set(ranks) & set(nodes[own_node]))
        return (
            plain
            if link is None or num_local == len(ranks)
            else EmulatedTeam(plain, link, num_local)
        )

    workers = Workers(
        world=team("world"),
        node=team("node"),
        across=team("across"),
        background=Background(
            node=team("background node"), across=team("background across"), watch=watch
        ),
        ranks_by_node=tuple(tuple(ranks) for ranks in nodes),
        node_names=node_names,
        watch=watch,
        _groups=groups,
        _teams=tuple(teams),
    )
    groups.at_exit(workers.close)
    return workers


def _meet(
    nodes: Sequence[Sequence[int]],
    columns: Sequence[Sequence[int]],
    groups: Groups,
    first_node: int,
) -> tuple[tuple[str, ...], Watch]:
    """Learn who the others are: what to call each node in a message, and how to watch them."""
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    told: list[tuple[str, str, Member] | None] = [None] * num_workers
    dist.all_gather_object(told, (uuid.uuid4().hex, socket.gethostname(), Member.own(rank)))
    met = [each for each in told if each is not None]
    node_names = tuple(
        f"node {i} ({met[ranks[0]][1]})" for i, ranks in enumerate(nodes, start=first_node)
    )
    if num_workers == 1:
        return node_names, Watch()
    # All have just left the gathering, so this is the same moment for everybody.
    own_time_s = time.time()
    node_of = {each: node for node, ranks in enumerate(nodes) for each in ranks}

    def members_of(team: str, rank: int) -> Sequence[int]:
        partition = {"node": nodes, "across": columns}.get(team.removeprefix("background "))
        if partition is None:
            return range(num_workers)
        return next(ranks for ranks in partition if rank in ranks)

    watch = StoreWatch(
        default_store(),
        # The first worker's name for this meeting: a job may form its teams more than once.
        prefix=f"paceline/watch/{met[0][0]}",
        rank=rank,
        members=[replace(member, node=node_names[node_of[member.rank]]) for _, _, member in met],
        members_of=members_of,
        is_speaker=_is_speaker(nodes, node_of[rank], rank),
        timeout_s=groups.timeout_s,
        abort=groups.abort,
    )
    times_s = [0.0] * num_workers
    dist.all_gather_object(times_s, own_time_s)
    watch.know_clocks([time_s - own_time_s for time_s in times_s])
    return node_names, watch


def _is_speaker(nodes: Sequence[Sequence[int]], own_node: int, rank: int) -> bool:
    """Whether this worker says who is missing: not all of a large job do, nor ask the store."""
    is_heard = own_node % -(-len(nodes) // _SPEAKING_NODES) == 0
    # Two of a node: should one of them be the one that is missed, the other says so.
    return is_heard and nodes[own_node].index(rank) < 2


def initialise(
    place: Place, backend: str | None, timeout_s: float | None, environment: Mapping[str, str]
) -> None:
    """Initialise ``torch.distributed`` for the workers that a launcher started."""
    store: Store
    timeout = timedelta(seconds=_TIMEOUT_S if timeout_s is None else timeout_s)
    if "MASTER_ADDR" in environment:
        meeting = rendezvous(
            "env://", rank=place.rank, world_size=place.num_workers, timeout=timeout
        )
        store = next(meeting)[0]
    elif place.num_workers == 1:
        store = HashStore()
    else:
        raise ValueError(
            f"{place.launcher} started {place.num_workers} workers but MASTER_ADDR is not set; set "
            "MASTER_ADDR and MASTER_PORT to the first node's address and a free port"
        )
    dist.init_process_group(
        backend or agree_on_backend(store, place.num_workers, find_gpu(place)),
        store=store,
        rank=place.rank,
        world_size=place.num_workers,
        timeout=timeout,
    )


def _nodes_of_job(place: Place) -> list[list[int]]:
    """Who sits where: every worker tells its node's number or machine; nodes may be unequal."""
    # As objects: torch finds them a device that the group's backend can reach.
    told: list[int | str] = [0] * dist.get_world_size()
    dist.all_gather_object(told, machine() if place.node is None else place.node)
    nodes: dict[int | str, list[int]] = {}
    for rank, node in enumerate(told):
        nodes.setdefault(node, []).append(rank)
    return list(nodes.values())


def _nodes_of_mesh(mesh: DeviceMesh) -> list[list[int]]:
    if mesh.ndim != 2:
        raise ValueError(
            f"The mesh has {mesh.ndim} dimensions; give one of two, nodes x workers of a node."
        )
    return [[int(rank) for rank in row] for row in mesh.mesh.tolist()]
