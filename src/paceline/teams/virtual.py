"""Virtual teams: what a program would communicate, written down instead of done.

A strategy that runs over these teams leaves a journal: which collectives it began, on which team
and with how many bytes, and where it waited for them. Somebody else puts times to it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from paceline.cluster.collective import CollectiveKind
from paceline.teams.background import Background
from paceline.teams.journal import (
    BackgroundWork,
    Collective,
    Journal,
    Pause,
    Poll,
    TeamName,
    Transfer,
    Wait,
)
from paceline.teams.team import Op, Pending, Team, check_op, check_rank
from paceline.teams.virtual_clock import VirtualClock
from paceline.teams.workers import Workers

_NUMBER_BYTES = 8


class VirtualPending(Pending):
    """Something that is over when somebody waits for it: when, the journal's reader decides."""

    def __init__(self, journal: Journal, ticket: int) -> None:
        self._journal = journal
        self._ticket: int | None = ticket
        self._num_asked = 0

    @property
    def is_over(self) -> bool:
        """Whether the program has waited for it."""
        return self._ticket is None

    def wait(self) -> None:
        """Write down that the program waits here; the second time it does not."""
        if self._ticket is not None:
            self._journal.append(Wait(self._ticket))
            self._ticket = None

    def done(self) -> bool:
        """What the journal's lateness says, which is written down."""
        if self._ticket is None:
            return True
        self._num_asked += 1
        answer = self._num_asked > self._journal.lateness
        self._journal.append(Poll(self._ticket, answer))
        return answer


class VirtualTeam(Team):
    """A team of which only this worker exists."""

    def __init__(
        self,
        journal: Journal,
        name: TeamName,
        *,
        size: int,
        rank: int,
        peer_of: Callable[[int], tuple[bool, int]],
    ) -> None:
        self._journal = journal
        self._name = name
        self._size = size
        self._rank = rank
        self._peer_of = peer_of  # by rank: whether it is on another node, and its offset
        self._sent: dict[int, VirtualPending] = {}  # by rank: the last transfer to it
        self._bytes_handed = 0

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._size

    @property
    def rank(self) -> int:
        """This worker's place."""
        return self._rank

    @property
    def bytes_handed(self) -> int:
        """Bytes handed over so far."""
        return self._bytes_handed

    @property
    def keeps_order(self) -> bool:
        """Nobody knows yet what will carry the messages."""
        return False

    def _begin(self, kind: CollectiveKind, num_bytes: int) -> Pending:
        self._bytes_handed += num_bytes
        ticket = self._journal.new_ticket()
        self._journal.append(Collective(ticket, self._name, kind, num_bytes))
        return VirtualPending(self._journal, ticket)

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Write down an all-reduce."""
        check_op(op, tensor.dtype)
        return self._begin("all_reduce", tensor.nbytes)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Write down a broadcast."""
        check_rank(source, self._size)
        return self._begin("broadcast", tensor.nbytes)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Write down a reduce-scatter."""
        check_op(op, tensor.dtype)
        return self._begin("reduce_scatter", tensor.nbytes)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Write down an all-gather."""
        return self._begin("all_gather", output.nbytes)

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Write down that a message begins."""
        self._bytes_handed += tensor.nbytes
        self._sent[to] = self._transfer(tensor, to, is_sent=True)
        return self._sent[to]

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Write down that a message is waited for."""
        return self._transfer(tensor, source, is_sent=False)

    def _transfer(self, tensor: torch.Tensor, peer: int, *, is_sent: bool) -> VirtualPending:
        if not 0 <= peer < self._size or peer == self._rank:
            raise ValueError(
                f"Worker {self._rank} of a team of {self._size} has no worker {peer} to send to or "
                "to receive from."
            )
        ticket = self._journal.new_ticket()
        is_outward, offset = self._peer_of(peer)
        is_behind = not is_sent and peer in self._sent and not self._sent[peer].is_over
        self._journal.append(
            Transfer(ticket, self._name, is_sent, is_outward, offset, tensor.nbytes, is_behind)
        )
        return VirtualPending(self._journal, ticket)

    def agree(self, number: float, op: Op = "mean") -> float:
        """What the members' play comes to; as long as there is none, all say what this one says."""
        check_op(op)
        factor = self._size if op == "sum" else 1
        if self._journal.readings is None:
            self._begin("all_reduce", _NUMBER_BYTES).wait()
            return number * factor if factor > 1 else number
        ticket = self._journal.new_ticket()
        own_op: Op = "mean" if op == "sum" else op
        self._bytes_handed += _NUMBER_BYTES
        self._journal.append(
            Collective(ticket, self._name, "all_reduce", _NUMBER_BYTES, float(number), own_op)
        )
        VirtualPending(self._journal, ticket).wait()
        return self._journal.next_reading(float(number), ticket) * factor

    def barrier(self) -> None:
        """Write down what it costs: as much as agreeing on a number."""
        self._begin("all_reduce", _NUMBER_BYTES).wait()

    def gather(self, data: bytes) -> list[bytes]:
        """All members are alike, so they say what this one says."""
        self._begin("all_gather", _NUMBER_BYTES * self._size).wait()
        self._begin("all_gather", len(data) * self._size).wait()
        return [data] * self._size


@dataclass(frozen=True, kw_only=True)
class VirtualBackground(Background):
    """Background work that is written down at once, in a list of its own."""

    journal: Journal

    def run(self, work: Callable[[], None], *, device: torch.device) -> Pending:
        """Run the function now, and note that it runs beside what follows."""
        ticket = self.journal.new_ticket()
        with self.journal.aside() as events, torch.no_grad():
            work()
        self.journal.append(BackgroundWork(ticket, tuple(events)))
        return VirtualPending(self.journal, ticket)

    def beside(self) -> Background:
        """This one: what runs in the background is written down in one row."""
        return self

    def pause(self, seconds: float) -> None:
        """Write the pause down."""
        self.journal.append(Pause(seconds))


def virtual_workers(
    journal: Journal, node_sizes: tuple[int, ...], *, node: int, index: int
) -> Workers:
    """The workers of a cluster as worker ``index`` of node ``node`` sees them."""
    starts = list(accumulate(node_sizes[:-1], initial=0))
    nodes = tuple(
        tuple(range(start, start + size)) for start, size in zip(starts, node_sizes, strict=True)
    )
    peers = [place for place, size in enumerate(node_sizes) if index < size]

    def in_world(rank: int) -> tuple[bool, int]:
        place = bisect(starts, rank) - 1
        return place != node, rank - starts[place] - index

    def team(name: TeamName) -> VirtualTeam:
        size, rank = {
            "world": (sum(node_sizes), nodes[node][index]),
            "node": (node_sizes[node], index),
            "across": (len(peers), peers.index(node)),
        }[name]
        peer_of: Callable[[int], tuple[bool, int]] = {
            "world": in_world,
            "node": lambda rank: (False, rank - index),
            "across": lambda rank: (True, 0),
        }[name]
        return VirtualTeam(journal, name, size=size, rank=rank, peer_of=peer_of)

    return Workers(
        world=team("world"),
        node=team("node"),
        across=team("across"),
        background=VirtualBackground(node=team("node"), across=team("across"), journal=journal),
        ranks_by_node=nodes,
        node_names=tuple(f"node {place}" for place in range(len(node_sizes))),
        clock=VirtualClock(journal),
    )
