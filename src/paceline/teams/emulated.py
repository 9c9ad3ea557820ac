"""Links emulated in software, for labs on machines where the kernel may not shape any.

All workers of such a lab are processes of one machine. What crosses nodes is charged to the node's
link, a queue that all of the node's workers share, and a collective is done for everybody only
when the slowest link is.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch

from paceline.teams.team import Op, Pending, Team, WrappedTeam

# Set by the lab for its workers, as torchrun sets RANK: {"folder": …, "rates_bytes_per_s": […]}
ENVIRONMENT_VARIABLE = "PACELINE_EMULATED_LINKS"

# The time until which the link is busy; bytes sent so far; its rate, or 0 for the one it began with
_STATE = struct.Struct("ddd")


class EmulatedLink:
    """One node's link to the others: a first-come queue in a file that its workers share."""

    def __init__(self, path: Path, rate_bytes_per_s: float) -> None:
        self._path = path
        self._first_rate = rate_bytes_per_s

    @classmethod
    def at(cls, folder: Path, node: int, rate_bytes_per_s: float) -> Self:
        """The link of a node in a job's folder."""
        return cls(folder / f"link-{node}", rate_bytes_per_s)

    def reserve(self, num_bytes: float) -> float:
        """Queue bytes on the link; the time (time.monotonic) at which the last has crossed."""
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            busy_until, sent, rate = self._read(file.fileno())
            end = max(busy_until, time.monotonic()) + num_bytes / (rate or self._first_rate)
            self._write(file.fileno(), end, sent + num_bytes, rate)
        return end

    def set_rate(self, rate_bytes_per_s: float) -> None:
        """Change the rate, for all who share the link, of what is queued from now on."""
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            busy_until, sent, _ = self._read(file.fileno())
            self._write(file.fileno(), busy_until, sent, rate_bytes_per_s)

    def bytes_sent(self) -> int:
        """What crossed this link since the lab began."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return round(self._read(file.fileno())[1])

    @staticmethod
    def _read(descriptor: int) -> tuple[float, float, float]:
        data = os.pread(descriptor, _STATE.size, 0)
        return _STATE.unpack(data) if data else (0.0, 0.0, 0.0)

    @staticmethod
    def _write(descriptor: int, busy_until: float, sent: float, rate: float) -> None:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _STATE.pack(busy_until, sent, rate))


def link_of_node(environment: Mapping[str, str], node: int) -> EmulatedLink | None:
    """The emulated link of a node, if the lab emulates links in software."""
    text = environment.get(ENVIRONMENT_VARIABLE)
    if text is None:
        return None
    settings = json.loads(text)
    rate = settings["rates_bytes_per_s"][node]
    return None if rate is None else EmulatedLink.at(Path(settings["folder"]), node, rate)


class PacedPending(Pending):
    """Done when the real work is done and the emulated links have carried it."""

    def __init__(self, work: Pending, deadlines: Pending, end: torch.Tensor) -> None:
        self._work = work
        self._deadlines = deadlines
        self._end = end

    def wait(self) -> None:
        """Block until the slowest link of the team has carried its part."""
        self._work.wait()
        self._deadlines.wait()
        time.sleep(max(0.0, float(self._end.item()) - time.monotonic()))

    def done(self) -> bool:
        """Whether work and links are done."""
        arrived = self._work.done() and self._deadlines.done()
        return arrived and float(self._end.item()) <= time.monotonic()


class EmulatedTeam(WrappedTeam):
    """A team whose members sit on several emulated nodes.

    ``num_local`` of its members are on this worker's node: together they charge the node's link
    with what a ring that visits node after node sends out of it.
    """

    def __init__(self, team: Team, link: EmulatedLink, num_local: int) -> None:
        super().__init__(team)
        self._link = link
        self._num_local = num_local

    def _paced(self, work: Pending, num_bytes_out_of_node: float) -> Pending:
        end = torch.tensor(
            [self._link.reserve(num_bytes_out_of_node / self._num_local)], dtype=torch.float64
        )
        # Everybody waits for the slowest link; monotonic time is the machine's, so it compares.
        return PacedPending(work, self._team.all_reduce(end, "max"), end)

    def _ring_share(self) -> float:
        return (self.size - 1) / self.size

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; a ring sends 2(P-1)/P of the bytes out of each node."""
        work = self._team.all_reduce(tensor, op)
        return self._paced(work, 2 * self._ring_share() * tensor.nbytes)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor, passed on from node to node."""
        return self._paced(self._team.broadcast(tensor, source), tensor.nbytes)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; a ring sends (P-1)/P of the bytes out of each node."""
        work = self._team.reduce_scatter(output, tensor, op)
        return self._paced(work, self._ring_share() * tensor.nbytes)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another; (P-1)/P of them leave each node."""
        work = self._team.all_gather(output, tensor)
        return self._paced(work, self._ring_share() * output.nbytes)

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member; the sender's link carries it, the receiver waits for it."""
        end = torch.tensor([self._link.reserve(tensor.nbytes)], dtype=torch.float64)
        work = self._team.send(tensor, to)
        return PacedPending(work, self._team.send(end, to), end)

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive from one member, when its link has carried the bytes."""
        end = torch.zeros(1, dtype=torch.float64)
        work = self._team.receive(tensor, source)
        return PacedPending(work, self._team.receive(end, source), end)

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member: eight bytes, which no link notices."""
        return self._team.agree(number, op)

    def barrier(self) -> None:
        """Block until all members have called this; no link notices."""
        self._team.barrier()

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes: few, which no link notices."""
        return self._team.gather(data)
