"""A team on a ``torch.distributed`` process group: NCCL, Gloo, MPI, whatever torch offers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from paceline.teams.team import Op, Pending, Team

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class WorkPending(Pending):
    """A ``torch.distributed`` work handle."""

    def __init__(self, work: dist.Work | None) -> None:
        self._work = work

    def wait(self) -> None:
        """Block until the work is done (on CUDA: until the stream knows to wait for it)."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def done(self) -> bool:
        """Whether the work is done."""
        return self._work is None or self._work.is_completed()


class GroupTeam(Team):
    """A team on a process group that this worker is a member of."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._rank = dist.get_rank(group)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._ranks)

    @property
    def rank(self) -> int:
        """This worker's place in the team."""
        return self._rank

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors in place.

        A mean is divided before it is summed, as torch's DDP does: the sum cannot overflow a
        narrow type that each member's value fits in.
        """
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)
        return WorkPending(dist.all_reduce(tensor, _REDUCE_OPS[op], self.group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor."""
        return WorkPending(dist.broadcast(tensor, self._ranks[source], self.group, async_op=True))

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each gets its share."""
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)
        work = dist.reduce_scatter_tensor(
            output, tensor, _REDUCE_OPS[op], self.group, async_op=True
        )
        return WorkPending(work)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another."""
        return WorkPending(dist.all_gather_into_tensor(output, tensor, self.group, async_op=True))

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member."""
        return WorkPending(dist.isend(tensor, self._ranks[to], self.group))

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive from one member."""
        return WorkPending(dist.irecv(tensor, self._ranks[source], self.group))

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member."""
        # float64: Python's own precision, so that step counts and times survive.
        value = torch.tensor([number], dtype=torch.float64, device=_home_device(self.group))
        self.all_reduce(value, op).wait()
        return float(value.item())


def _home_device(group: dist.ProcessGroup) -> torch.device:
    """Where tensors must live for this group's backend to take them."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if "nccl" in dist.get_backend(group)
        else torch.device("cpu")
    )
